"""Statements that raise in a module of definitions, for tests that their tables of refusals are whole."""

import ast
import inspect
from types import ModuleType

#: Functions that refuse neighbours in a chain: `test_chain_definition.py` has those refusals.
CHAINING = {"taker", "check_followed", "_check_taken_back"}


def raises_in(module: ModuleType) -> set[int]:
    """Return the lines of a module that raise, without those of functions about chains."""
    nodes, lines = [ast.parse(inspect.getsource(module))], set[int]()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef) and node.name in CHAINING:
            continue
        if isinstance(node, ast.Raise):
            lines.add(node.lineno)
        nodes += ast.iter_child_nodes(node)
    return lines
