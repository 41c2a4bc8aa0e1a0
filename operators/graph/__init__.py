"""Graphs of operators, in which one takes the rows that another emits."""
