package cep;

import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPEventService;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import com.espertech.esper.runtime.client.EPStatement;

/** Esper, in memory, on one thread, with a clock that the events set. Rules are statements, one a line, that give an id. */
public final class Esper {
    public static void main(String[] arguments) throws Exception {
        Events.run(arguments, Esper::make);
    }

    private static Events.Engine make(String rules, Events.Matches matches) throws Exception {
        Configuration configuration = new Configuration();
        configuration.getCommon().addEventType("Placed", Events.Order.class);
        configuration.getCommon().addEventType("Ack", Events.Ack.class);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        configuration.getCompiler().getByteCode().setAllowSubscriber(true);
        EPRuntime runtime = EPRuntimeProvider.getRuntime("rules-" + System.nanoTime(), configuration);
        runtime.initialize();
        EPEventService events = runtime.getEventService();
        events.advanceTime(0);
        String[] statements = rules.strip().split("\n");
        for (int i = 0; i < statements.length; i++) {
            var compiled = EPCompilerProvider.getCompiler()
                    .compile("@name('r') " + statements[i], new CompilerArguments(configuration));
            var deployed = runtime.getDeploymentService().deploy(compiled);
            EPStatement statement = runtime.getDeploymentService().getStatement(deployed.getDeploymentId(), "r");
            long rule = i;
            statement.addListener((fresh, old, of, in) -> {
                for (var row : fresh) {
                    matches.add(rule, (Long) row.get("id"));
                }
            });
        }
        return engine(events);
    }

    /** An engine whose clock is the time of its events. */
    static Events.Engine engine(EPEventService events) {
        return new Events.Engine() {
            private long now = 0;

            @Override
            public void send(Events.Event event) {
                if (event.getAt() > now) {
                    now = event.getAt();
                    events.advanceTime(now);
                }
                events.sendEventBean(event, event instanceof Events.Order ? "Placed" : "Ack");
            }

            @Override
            public void end(long at) {
                events.advanceTime(at);
            }
        };
    }
}
