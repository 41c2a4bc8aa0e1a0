package cep;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/** Events of a file, and the matches that an engine finds: four and two numbers each, little endian. */
public final class Events {
    /** An order, or its acknowledgement: kind 0 and 1. */
    public abstract static class Event {
        private final long id;
        private final long at;
        private final long amount;

        Event(long id, long at, long amount) {
            this.id = id;
            this.at = at;
            this.amount = amount;
        }

        public long getId() {
            return id;
        }

        public long getAt() {
            return at;
        }

        public long getAmount() {
            return amount;
        }
    }

    public static final class Order extends Event {
        Order(long id, long at, long amount) {
            super(id, at, amount);
        }
    }

    public static final class Ack extends Event {
        Ack(long id, long at, long amount) {
            super(id, at, amount);
        }
    }

    /** The matches of a round: rule and id. */
    public static final class Matches {
        private long[] found = new long[1 << 16];
        private int size = 0;

        public void add(long rule, long id) {
            if (size + 2 > found.length) {
                found = java.util.Arrays.copyOf(found, 2 * found.length);
            }
            found[size++] = rule;
            found[size++] = id;
        }

        void write(String path) throws IOException {
            ByteBuffer bytes = ByteBuffer.allocate(8 * size).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asLongBuffer().put(found, 0, size);
            Files.write(Path.of(path), bytes.array());
        }
    }

    /** An engine that has its rules. */
    public interface Engine {
        void send(Event event) throws Exception;

        /** Let time pass until everything is decided. */
        void end(long at) throws Exception;
    }

    /** Makes an engine that adds its matches to these. */
    public interface Maker {
        Engine make(String rules, Matches matches) throws Exception;
    }

    private Events() {}

    /**
     * Two rounds over the events of a file. The processor time of the second one is printed, of all threads of this process,
     * and its matches are written.
     */
    public static void run(String[] arguments, Maker maker) throws Exception {
        LongBuffer numbers = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])))
                .order(ByteOrder.LITTLE_ENDIAN)
                .asLongBuffer();
        String rules = Files.readString(Path.of(arguments[1]));
        Event[] events = new Event[numbers.remaining() / 4];
        for (int i = 0; i < events.length; i++) {
            long kind = numbers.get(4 * i), id = numbers.get(4 * i + 1);
            long at = numbers.get(4 * i + 2), amount = numbers.get(4 * i + 3);
            events[i] = kind == 0 ? new Order(id, at, amount) : new Ack(id, at, amount);
        }
        OperatingSystemMXBean clock = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
        for (int round = 0; round < 2; round++) {
            Matches matches = new Matches();
            Engine engine = maker.make(rules, matches);
            long began = clock.getProcessCpuTime();
            for (Event event : events) {
                engine.send(event);
            }
            engine.end(events[events.length - 1].getAt() + 60_000);
            long spent = clock.getProcessCpuTime() - began;
            if (round == 1) {
                matches.write(arguments[2]);
                System.out.println(spent / 1e9);
            }
        }
        System.exit(0);
    }
}
