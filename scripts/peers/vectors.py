"""Cases that `attest export` wrote, for any framework: reading them, writing outputs, and going through a suite.

Needs NumPy only: a safetensors file is eight bytes of length, a JSON header and raw data. A driver gives `main` a function that
computes one case; going through a suite, its crashes and time-outs cost one case each.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np

PLAIN = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I32": np.int32, "U8": np.uint8}
SIZES = {"bf16": 2, "f16": 2, "f32": 4, "e4m3": 1, "e5m2": 1}
# Outputs are written in the type in which they were computed: the error of rounding to it is granted besides the bound.
WRITTEN = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}
# Seconds that one case may take. Compiling a kernel at its first use counts.
LIMIT = 300


class Skip(Exception):
    """The case cannot be expressed; the message says why."""


class DeviceLost(Exception):
    """The device cannot be used any more: this process must end, and the case has crashed it."""


class Case:
    """One case: `tensors` by name as arrays (bf16 widened to f32), `about` its description, `line` its case line."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            data = file.read()
        self.about = json.loads(header.pop("__metadata__")["attest"])
        self.line = self.about["case"]
        self.tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = data[begin:end]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, PLAIN[entry["dtype"]])
            self.tensors[name] = values.reshape(entry["shape"])

    def __getitem__(self, name):
        return self.tensors[name]

    def __contains__(self, name):
        return name in self.tensors

    @property
    def lengths(self):
        """Query rows and keys of each request, as two arrays."""
        return np.diff(self["query_start_loc"]), self["seq_lens"]

    def requests(self):
        """Rows in `q`, rows in `k` and `v`, of each request, as slices."""
        starts = self["query_start_loc"], self["kv_start_loc"]
        for request in range(len(self["seq_lens"])):
            yield tuple(slice(int(start[request]), int(start[request + 1])) for start in starts)

    def one_scale(self, name):
        """A scale that is the same for every KV head; a framework that takes one number needs it."""
        scales = self[name]
        if (scales != scales[0]).any():
            raise Skip(f"a {name} per KV head")
        return float(scales[0])

    def require(self, **features):
        """Raises Skip for what the case has and the framework lacks: require(softcap=False, sinks=False)."""
        has = {
            "softcap": self.about["softcap"] is not None,
            "alibi": "alibi_slopes" in self,
            "sinks": "sinks" in self,
            "window_left": window(self.about, "window_left") is not None,
            "window_right": window(self.about, "window_right") is not None,
            "unequal_dims": self.about["head_dim"] != self.about["head_dim_v"],
        }
        words = {"alibi": "ALiBi", "window_left": "a left window", "window_right": "a right window",
                 "unequal_dims": "K and V of different head_dim", "sinks": "attention sinks"}
        for feature, served in features.items():
            if has[feature] and not served:
                raise Skip(f"no {words.get(feature, feature)}")


def window(about, side):
    """A window's reach, `window_left` or `window_right`; None where there is no limit. A reach beyond any length is none: cases go
    to the end of 64 bits, where sums would overflow."""
    reach = about[side]
    return None if reach is None or reach >= 1 << 31 else reach


def visible(q_len, kv_len, about):
    """Position of each row, index of each key, and a mask [q_len, kv_len] of the keys that a row sees. The last row stands at
    the last key."""
    positions = kv_len - q_len + np.arange(q_len)[:, None]
    keys = np.arange(kv_len)[None, :]
    mask = np.ones((q_len, kv_len), bool)
    if about["causal"]:
        mask &= keys <= positions
    left, right = window(about, "window_left"), window(about, "window_right")
    if left is not None:
        mask &= keys >= positions - left
    if right is not None:
        mask &= keys <= positions + right
    return positions, keys, mask


def save(path, tensors, case):
    """Writes arrays of f64, f32, f16, or bf16 as uint16, and the case line that they belong to."""
    header, data = {"__metadata__": {"case": case}}, b""
    for name, array in tensors.items():
        array = np.ascontiguousarray(array)
        raw = array.tobytes()
        header[name] = {"dtype": WRITTEN[array.dtype], "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    partial = Path(f"{path}.part")
    partial.write_bytes(len(text).to_bytes(8, "little") + text + data)
    partial.replace(path)


def compute(attend, case_path, out_path, with_lse):
    """Computes one case; returns why it has no output, or None."""
    case = Case(case_path)
    try:
        tensors = attend(case)
    except Skip as skip:
        return str(skip)
    save(out_path, {name: array for name, array in tensors.items() if with_lse or name != "lse"}, case.line)
    return None


def work(attend, directory, names, with_lse):
    """The child: computes cases and says which one it is at."""
    for name in names:
        print(name, flush=True)
        try:
            reason = compute(attend, directory / f"{name}.safetensors", directory / f"{name}.out.safetensors", with_lse)
        except DeviceLost as lost:
            (directory / f"{name}.crash.txt").write_text(f"{lost}\n{traceback.format_exc()}")
            os._exit(70)
        if reason:
            (directory / f"{name}.skip.txt").write_text(reason + "\n")
    print("", flush=True)


class Child:
    """A process that goes through a part of the cases, and is started again after each case that ends it."""

    def __init__(self, command, directory, names):
        self.command, self.directory, self.left = command, directory, list(names)
        self.process = self.at = None
        self.start()

    def start(self):
        self.process = None
        if self.left:
            arguments = [*self.command, "--worker", *self.left]
            self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.at = None

    def step(self):
        """Takes one line; ends the case that the child died of or hung in."""
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline().strip() if ready else None
        if line:
            self.at = line
            self.left.remove(line)
            return
        finished = line == "" and not self.left and self.process.poll() in (None, 0)
        if line is None:
            self.process.kill()
        _, words = self.process.communicate()
        if not (finished and self.process.returncode == 0):
            self.note(line is None, words)
        self.start()

    def note(self, hung, words):
        if self.at is None:
            raise SystemExit(f"the driver does not start:\n{words}")
        path = self.directory / f"{self.at}.crash.txt"
        if not path.exists():
            reason = f"no answer in {LIMIT} s" if hung else f"exit code {self.process.returncode}"
            path.write_text(f"{reason}\n{words[-2000:]}")


def go_through(directory, jobs, only):
    """Goes through a suite. What earlier runs left is removed first."""
    names = [case["id"] for case in json.loads((directory / "suite.json").read_text())["cases"]]
    names = [name for name in names if not only or name in only]
    for stale in names:
        for ending in ("out.safetensors", "skip.txt", "crash.txt"):
            (directory / f"{stale}.{ending}").unlink(missing_ok=True)
    command = [sys.executable, *sys.argv]
    children = [Child(command, directory, names[part::jobs]) for part in range(min(jobs, len(names)))]
    while any(child.process for child in children):
        for child in children:
            if child.process:
                child.step()
    count = lambda ending: sum((directory / f"{name}.{ending}").exists() for name in names)
    print(f"{directory.name}: {count('out.safetensors')} outputs, {count('skip.txt')} skips, {count('crash.txt')} crashes", file=sys.stderr)


def main(parser, prepare, before=lambda options: None):
    """The command line of a driver: `DRIVER CASE OUT` for one case, `DRIVER DIRECTORY` for a suite.

    `prepare(options)` returns the function that computes a case (to a dict of arrays `out` and, if it has one, `lse`), and the
    dict for made-by.json with `by`, `on` and `versions`. `before(options)` is called once before a suite is gone through; what it
    puts into the environment reaches the processes that compute.
    """
    parser.add_argument("case", type=Path, help="an exported file, or the directory of a suite")
    parser.add_argument("output", type=Path, nargs="?", help="where the output goes; not with a directory")
    parser.add_argument("--jobs", type=int, default=1, help="processes that go through a suite at once")
    parser.add_argument("--only", nargs="+", metavar="ID", help="only these cases of a suite")
    parser.add_argument("--no-lse", action="store_true", help="leave the lse out: only the output is judged")
    parser.add_argument("--worker", nargs="+", metavar="ID", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case.is_dir() != (options.output is None):
        parser.error("accepted: CASE and OUTPUT, or the directory of a suite alone")
    if options.case.is_dir() and not options.worker:
        # The parent never touches the framework: it must survive whatever a case does.
        before(options)
        go_through(options.case, options.jobs, options.only)
        return
    attend, made_by = prepare(options)
    if options.worker:
        (options.case / "made-by.json").write_text(json.dumps(made_by) + "\n")
        work(attend, options.case, options.worker, not options.no_lse)
        return
    reason = compute(attend, options.case, options.output, not options.no_lse)
    if reason:
        raise SystemExit(f"skipped: {reason}")
