"""A function of the user's over keyed state and timers: `wr.Process`."""
