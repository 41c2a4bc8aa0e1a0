package cep;

import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPEventService;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import com.espertech.esper.runtime.client.EPStatement;
import java.util.HashSet;
import java.util.Set;

/**
 * Alerts over a sliding mean by Esper, in memory, on one thread. The rules are three numbers: the length of the window in
 * seconds, the mean above which an alert opens, and that below which it is cancelled. A match is twice the milliseconds of a
 * transition, plus one where it cancels, and the id. With two numbers a match is each mean: twice the milliseconds, plus one
 * where it is above the second.
 */
public final class Means {
    public static void main(String[] arguments) throws Exception {
        Events.run(arguments, Means::make);
    }

    private static Events.Engine make(String rules, Events.Matches matches) throws Exception {
        String[] numbers = rules.strip().split(" ");
        boolean each = numbers.length == 2;
        double high = Double.parseDouble(numbers[1]), low = each ? 0 : Double.parseDouble(numbers[2]);
        Configuration configuration = new Configuration();
        configuration.getCommon().addEventType("Placed", Events.Order.class);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        EPRuntime runtime = EPRuntimeProvider.getRuntime("means-" + System.nanoTime(), configuration);
        runtime.initialize();
        EPEventService events = runtime.getEventService();
        events.advanceTime(0);
        String statement = "@name('m') select id, avg(amount) as mean from Placed#time(" + numbers[0]
                + " sec) group by id";
        var compiled = EPCompilerProvider.getCompiler().compile(statement, new CompilerArguments(configuration));
        var deployed = runtime.getDeploymentService().deploy(compiled);
        EPStatement means = runtime.getDeploymentService().getStatement(deployed.getDeploymentId(), "m");
        Set<Long> open = new HashSet<>();
        means.addListener((fresh, old, of, in) -> {
            for (var row : fresh) {
                Double mean = (Double) row.get("mean");
                Long id = (Long) row.get("id");
                if (each) {
                    matches.add(2 * events.getCurrentTime() + (mean != null && mean > high ? 1 : 0), id);
                }
                if (each || mean == null) {
                    continue;
                }
                if (mean > high && open.add(id)) {
                    matches.add(2 * events.getCurrentTime(), id);
                } else if (mean < low && open.remove(id)) {
                    matches.add(2 * events.getCurrentTime() + 1, id);
                }
            }
        });
        return Esper.engine(events);
    }
}
