"""Stands in for the command line of a sweep's processes: `python standin.py TEMPLATE run|resume …`.

Needs nothing but the standard library, so that a test can start many. It says what a run says, then
copies the finished run TEMPLATE to its place. Words of the run choose otherwise by their seed:
2 makes it fail, 3 makes it learn until it is told to stop or nobody listens, 4 ends it by SIGKILL,
5 fails as long as there is no file `mended` beside the sweep.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


def main(template: Path, words: list[str]) -> int:
    settings = dict(word.partition("=")[::2] for word in words if "=" in word)
    if words[0] == "resume":
        run, seed = Path(words[1]), "1"
        shutil.rmtree(run)
    else:
        run, seed = Path(settings["run.dir"]) / settings["run.name"], settings["seed"]
    sweep = run.parent.parent
    with (sweep.parent / "asked.txt").open("a") as file:
        threads = os.environ.get("OMP_NUM_THREADS")
        file.write(json.dumps([words[0], run.name, threads, os.getpid()]) + "\n")
    if seed == "2" or (seed == "5" and not (sweep.parent / "mended").exists()):
        say(event="error", message="row 3 has no label; give it one")
        print("error: row 3 has no label; give it one", file=sys.stderr)
        return 2
    if seed == "3":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        shutil.copytree(template.parent / "stopped", run)
    say(event="progress", position=5, total_samples=10, accuracy=0.5, windowed_accuracy=0.5)
    if seed == "3":
        while True:
            time.sleep(0.02)
            try:
                say(event="testing")
            except BrokenPipeError:
                (sweep.parent / "unheard").touch()
                os._exit(141)
    if seed == "4":
        os.kill(os.getpid(), signal.SIGKILL)
    shutil.copytree(template, run)
    say(event="finished")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
