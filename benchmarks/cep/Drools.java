package cep;

import java.util.concurrent.TimeUnit;
import org.kie.api.KieBase;
import org.kie.api.KieServices;
import org.kie.api.builder.KieBuilder;
import org.kie.api.builder.KieFileSystem;
import org.kie.api.builder.Message;
import org.kie.api.conf.EventProcessingOption;
import org.kie.api.runtime.KieSession;
import org.kie.api.runtime.KieSessionConfiguration;
import org.kie.api.runtime.conf.ClockTypeOption;
import org.kie.api.runtime.rule.EntryPoint;
import org.kie.api.time.SessionPseudoClock;

/**
 * Drools in stream mode, in memory, on one thread, with a pseudo clock; rules fire after every thousand events, or as many as
 * the property `firing` says.
 */
public final class Drools {
    private static final int EVENTS_OF_FIRING = Integer.getInteger("firing", 1_000);

    public static void main(String[] arguments) throws Exception {
        Events.run(arguments, Drools::make);
    }

    private static Events.Engine make(String rules, Events.Matches matches) {
        KieServices services = KieServices.Factory.get();
        KieFileSystem files = services.newKieFileSystem();
        files.write("src/main/resources/rules.drl", rules);
        KieBuilder builder = services.newKieBuilder(files).buildAll(
                org.drools.model.codegen.ExecutableModelProject.class);
        if (builder.getResults().hasMessages(Message.Level.ERROR)) {
            throw new IllegalStateException(builder.getResults().toString());
        }
        var container = services.newKieContainer(services.getRepository().getDefaultReleaseId());
        var base = services.newKieBaseConfiguration();
        base.setOption(EventProcessingOption.STREAM);
        KieBase compiled = container.newKieBase(base);
        KieSessionConfiguration configuration = services.newKieSessionConfiguration();
        configuration.setOption(ClockTypeOption.PSEUDO);
        KieSession session = compiled.newKieSession(configuration, null);
        session.setGlobal("matches", matches);
        SessionPseudoClock clock = session.getSessionClock();
        EntryPoint point = session.getEntryPoint("DEFAULT");
        return new Events.Engine() {
            private int sent = 0;

            @Override
            public void send(Events.Event event) {
                long ahead = event.getAt() - clock.getCurrentTime();
                if (ahead > 0) {
                    clock.advanceTime(ahead, TimeUnit.MILLISECONDS);
                }
                point.insert(event);
                if (++sent % EVENTS_OF_FIRING == 0) {
                    session.fireAllRules();
                }
            }

            @Override
            public void end(long at) {
                clock.advanceTime(at - clock.getCurrentTime(), TimeUnit.MILLISECONDS);
                session.fireAllRules();
                session.dispose();
            }
        };
    }
}
