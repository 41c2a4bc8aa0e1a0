package cep;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.PatternSelectFunction;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * One rule by Flink's CEP, its state in RocksDB with incremental checkpoints each second, in a cluster of one slot inside this
 * process. The rules are the word "pairs" or "absences", and the folder of the checkpoints.
 */
public final class FlinkCep {
    /** An event as Flink serializes it. */
    public static final class Message {
        public long kind;
        public long id;
        public long at;

        public Message() {}
    }

    private static final class OfKind extends SimpleCondition<Message> {
        private final long kind;

        OfKind(long kind) {
            this.kind = kind;
        }

        @Override
        public boolean filter(Message message) {
            return message.kind == kind;
        }
    }

    private static List<Events.Event> sent;
    private static Events.Matches found;

    public static void main(String[] arguments) throws Exception {
        Events.run(arguments, FlinkCep::make);
    }

    private static Events.Engine make(String rules, Events.Matches matches) {
        String[] words = rules.strip().split(" ");
        sent = new ArrayList<>();
        found = matches;
        return new Events.Engine() {
            @Override
            public void send(Events.Event event) {
                sent.add(event);
            }

            @Override
            public void end(long at) throws Exception {
                run(words[0].equals("absences"), words[1]);
            }
        };
    }

    private static Message message(long number) {
        Events.Event event = sent.get((int) number);
        Message made = new Message();
        made.kind = event instanceof Events.Order ? 0 : 1;
        made.id = event.getId();
        made.at = event.getAt();
        return made;
    }

    private static void run(boolean absent, String checkpoints) throws Exception {
        Configuration made = new Configuration();
        made.setString("execution.runtime-mode", "STREAMING");
        made.setString("taskmanager.numberOfTaskSlots", "1");
        made.setString("taskmanager.memory.managed.size", "512m");
        made.setString("state.backend.type", "rocksdb");
        made.setString("execution.checkpointing.dir", "file://" + checkpoints);
        made.setString("execution.checkpointing.incremental", "true");
        made.setString("execution.checkpointing.interval", "1s");
        made.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        made.setString("restart-strategy.type", "none");
        made.setString("pipeline.object-reuse", "true");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, made);
        var source = new DataGeneratorSource<Message>(
                FlinkCep::message, sent.size(), TypeInformation.of(Message.class));
        var events = environment
                .fromSource(
                        source,
                        WatermarkStrategy.<Message>forMonotonousTimestamps()
                                .withTimestampAssigner((message, before) -> message.at),
                        "events")
                .keyBy(message -> message.id);
        Pattern<Message, Message> order = Pattern.<Message>begin("o").where(new OfKind(0));
        Pattern<Message, Message> answer = absent ? order.notFollowedBy("a") : order.followedBy("a");
        Pattern<Message, Message> pattern = answer.where(new OfKind(1)).within(Duration.ofSeconds(10));
        CEP.pattern(events, pattern)
                .select(new PatternSelectFunction<Message, Long>() {
                    @Override
                    public Long select(Map<String, List<Message>> match) {
                        long id = match.get("o").get(0).id;
                        found.add(0, id);
                        return id;
                    }
                })
                .sinkTo(new DiscardingSink<>());
        environment.execute();
    }
}
