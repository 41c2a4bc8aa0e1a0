"""Public helpers for users' tests: manual clock, test driver, fault injection, oracle."""
