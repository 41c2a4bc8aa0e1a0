package cep;

/** The status of one alert with hysteresis, which a rule of Drools asks for each mean. */
public final class Status {
    private final double high;
    private final double low;
    private boolean open = false;

    public Status(double high, double low) {
        this.high = high;
        this.low = low;
    }

    /** Add a match for a transition: twice the milliseconds, plus one where it cancels, and the id 0. */
    public void judge(double mean, long at, Events.Matches matches) {
        if (open ? mean < low : mean > high) {
            open = !open;
            matches.add(2 * at + (open ? 0 : 1), 0);
        }
    }
}
