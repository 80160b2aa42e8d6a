"""Judges mutants of taskd-kernel: applies each to a copy of the sources and runs tests until one fails.

Usage: mutants.py DIR COUNT SEED. DIR holds `all.json` (what `cargo mutants --list --json --diff` prints) and `tree`, a
copy of the sources. Appends a line to `outcomes.jsonl` for each mutant, prints the survivors and a line of JSON, and
exits with 1 if fewer than 90 % of the viable mutants were caught.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

SECONDS_MAX = 180  # of one run of tests: a mutant that does not end is caught
OWN = "own tests"
JUDGES = {  # in the order of their cost
    OWN: ["-p", "taskd-kernel", "--lib"],
    "decisions": ["-p", "taskd-core", "--test", "kernel", "--test", "ladder", "--test", "conformance"],
    "simulation": ["-p", "taskd-testing", "--lib", "sim::tests"],
}
# A mutant changes one file of many: building incrementally takes a tenth of the time.
ENVIRONMENT = os.environ | {"CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "0"}


def cargo_test(tree, arguments, seconds=None):
    """Returns true if the tests pass in time."""
    command = ["cargo", "test", "--quiet", "--locked", *arguments]
    run = subprocess.Popen(
        command, cwd=tree, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return run.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, 9)
        run.wait()
        return False


def verdict(tree):
    """Returns the kind of tests that catches the mutant in the tree, `unviable` or `missed`."""
    for name, tests in JUDGES.items():
        if not cargo_test(tree, [*tests, "--no-run"]):
            return "unviable"
        if not cargo_test(tree, tests, SECONDS_MAX):
            return name
    return "missed"


def main():
    kept, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tree = kept / "tree"
    ENVIRONMENT["CARGO_TARGET_DIR"] = str(kept / "target")
    mutants = {mutant["name"]: mutant for mutant in json.loads((kept / "all.json").read_text())}
    drawn = random.Random(seed).sample(sorted(mutants), min(count, len(mutants)))
    if (failing := verdict(tree)) != "missed":
        sys.exit(f"the unchanged sources do not pass: {failing}")
    found = {}
    for name in drawn:
        source = tree / mutants[name]["file"]
        before = source.read_text()
        _, _, hunks = mutants[name]["diff"].split("\n", 2)  # its head names the mutant in the place of a file
        diff = f"--- {mutants[name]['file']}\n+++ {mutants[name]['file']}\n{hunks}"
        subprocess.run(["git", "apply", "-p0", "-"], cwd=tree, input=diff, text=True, check=True)
        found[name] = verdict(tree)
        source.write_text(before)
        with (kept / "outcomes.jsonl").open("a") as outcomes:
            outcomes.write(json.dumps({"mutant": name, "outcome": found[name]}) + "\n")
    missed = [name for name in drawn if found[name] == "missed"]
    print(*missed, sep="\n")
    outcomes = list(found.values())
    viable = len(outcomes) - outcomes.count("unviable")
    share = 1 - len(missed) / max(1, viable)
    figures = {"viable": viable, "caught_by_own_tests": outcomes.count(OWN), "missed": len(missed)}
    print(json.dumps(figures | {"share": round(share, 3)}))
    sys.exit(share < 0.9)


if __name__ == "__main__":
    main()
