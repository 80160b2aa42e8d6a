"""Checks three rules of the package `taskd`: public functions have types, a framework's part imports only those modules
of the core that `taskd/_framework.py` lists, and the core imports no framework.
"""

import ast
import re
import sys
from pathlib import Path

CORE, FRAMEWORKS = (
    Path("taskd-core/runtime/python/taskd"),
    {
        "torch": Path("taskd-pytorch/python/taskd/torch"),
        "mindspore": Path("taskd-mindspore/python/taskd/mindspore"),
    },
)
PUBLIC_OF_CORE = ("__init__.py", "_step.py")  # `taskd.steps` hands out what the second one has


def main():
    listed = set(re.findall(r"`(_\w+)`", ast.get_docstring(parsed(CORE / "_framework.py")).split("may import")[1]))
    faults = []
    for name in PUBLIC_OF_CORE:
        faults += untyped(CORE / name)
    for path in sorted(CORE.rglob("*.py")):
        for line, module in imported(path):
            if module.split(".")[:2] in [["taskd", name] for name in FRAMEWORKS]:
                faults.append("%s:%d: the core imports %s" % (path, line, module))
    for name, place in FRAMEWORKS.items():
        for path in sorted(place.rglob("*.py")):
            faults += untyped(path)
            for line, module in imported(path):
                second = module.split(".")[1:2]
                if module.startswith("taskd.") and second != [name] and second[0] not in listed:
                    faults.append("%s:%d: taskd/_framework.py does not list %s" % (path, line, module))
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(1 if faults else 0)


def parsed(path):
    return ast.parse(path.read_text(), str(path))


def imported(path):
    """`(line, module)` of all modules that a file imports, those of a package by their own names."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "taskd":
            yield from ((node.lineno, "taskd." + one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module


def untyped(path):
    """Public functions and methods of public classes that lack a type."""
    for scope in [parsed(path)] + [one for one in parsed(path).body if isinstance(one, ast.ClassDef)]:
        is_class = isinstance(scope, ast.ClassDef)
        if is_class and scope.name.startswith("_"):
            continue
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") and node.name != "__init__":
                continue
            is_static = any(getattr(one, "id", "") == "staticmethod" for one in node.decorator_list)
            given = node.args.posonlyargs + node.args.args
            given = given[1:] if is_class and not is_static else given
            given += node.args.kwonlyargs + [one for one in (node.args.vararg, node.args.kwarg) if one]
            if node.returns is None or any(one.annotation is None for one in given):
                yield "%s:%d: %s has not all its types" % (path, node.lineno, node.name)


main()
