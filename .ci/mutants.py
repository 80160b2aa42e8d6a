"""Judges mutants of taskd-kernel: applies each to a copy of the sources and runs tests.

Usage: mutants.py DIR COUNT SEED. DIR holds `all.json` (what `cargo mutants --list --json --diff` prints) and `tree`, a
copy of the sources. The package's own tests judge every mutant, a short simulation those that survive them. Appends a
line to `outcomes.jsonl` for each verdict, prints the survivors and a line of JSON, and exits with 1 if fewer than 90 %
of the viable mutants were caught.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

SECONDS_MAX = 120  # of one run of tests: a mutant that does not end is caught
OWN, SIMULATION = "own tests", "simulation"
JUDGES = {
    OWN: ["-p", "taskd-kernel", "--lib", "--test", "kernel", "--test", "ladder"],
    SIMULATION: ["-p", "taskd-testing", "--lib", "sim::tests"],
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


def verdict(tree, judge):
    """Returns `judge` if these tests catch the mutant in the tree, otherwise `unviable` or `missed`."""
    if not cargo_test(tree, [*JUDGES[judge], "--no-run"]):
        return "unviable"
    return "missed" if cargo_test(tree, JUDGES[judge], SECONDS_MAX) else judge


def judged(tree, mutant, judge):
    """Returns the verdict on one mutant. The tree is left unchanged."""
    source = tree / mutant["file"]
    before = source.read_text()
    _, _, hunks = mutant["diff"].split("\n", 2)  # its head names the mutant in the place of a file
    diff = f"--- {mutant['file']}\n+++ {mutant['file']}\n{hunks}"
    subprocess.run(["git", "apply", "-p0", "-"], cwd=tree, input=diff, text=True, check=True)
    try:
        return verdict(tree, judge)
    finally:
        source.write_text(before)


def main():
    kept, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tree = kept / "tree"
    ENVIRONMENT["CARGO_TARGET_DIR"] = str(kept / "target")
    mutants = {mutant["name"]: mutant for mutant in json.loads((kept / "all.json").read_text())}
    drawn = random.Random(seed).sample(sorted(mutants), min(count, len(mutants)))
    found = dict.fromkeys(drawn, "missed")
    for judge in JUDGES:
        left = [name for name in drawn if found[name] == "missed"]
        if left and verdict(tree, judge) != "missed":
            sys.exit(f"the unchanged sources do not pass: {judge}")
        for name in left:
            found[name] = judged(tree, mutants[name], judge)
            with (kept / "outcomes.jsonl").open("a") as outcomes:
                outcomes.write(json.dumps({"mutant": name, "judge": judge, "verdict": found[name]}) + "\n")
    missed = [name for name in drawn if found[name] == "missed"]
    print(*missed, sep="\n")
    verdicts = list(found.values())
    viable = len(verdicts) - verdicts.count("unviable")
    share = 1 - len(missed) / max(1, viable)
    by = {"own_tests": verdicts.count(OWN), "simulation": verdicts.count(SIMULATION)}
    print(json.dumps({"viable": viable, "caught_by": by, "missed": len(missed), "share": round(share, 3)}))
    sys.exit(share < 0.9)


if __name__ == "__main__":
    main()
