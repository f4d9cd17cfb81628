"""The process that validates content against shapes. Run by path; it answers once and ends.

    python -I -S shacl_worker.py MEMORY-BYTES CPU-SECONDS IMPORT-PATH...

Standard input: the length of the shapes in 8 bytes, big-endian; the shapes; the content; both N-Quads. Standard output:
a JSON object, `conforms` and `report`. Before it reads anything it gives up memory beyond its limit, processor time,
files, sockets and child processes, so whatever a shapes graph makes the validator do ends this process and nothing
else. Shapes in SPARQL or JavaScript are not run, and nothing is imported from elsewhere.
"""

from __future__ import annotations

import json
import resource
import sys

_WARM_SHAPES = (
    "<urn:s> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://www.w3.org/ns/shacl#NodeShape> .\n"
    "<urn:s> <http://www.w3.org/ns/shacl#targetNode> <urn:n> .\n"
    "<urn:s> <http://www.w3.org/ns/shacl#nodeKind> <http://www.w3.org/ns/shacl#Literal> .\n"
)
REPORT_CHARS_MAX = 4_000


def _give_up(memory_bytes: int, cpu_seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime) + cpu_seconds
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _validate(shapes: str, content: str) -> tuple[bool, str]:
    import pyshacl
    import rdflib

    data, rules = rdflib.Graph(), rdflib.Graph()
    data.parse(data=content, format="nt")
    rules.parse(data=shapes, format="nt")
    conforms, _, report = pyshacl.validate(
        data,
        shacl_graph=rules,
        inference="none",
        advanced=False,
        js=False,
        do_owl_imports=False,
        meta_shacl=False,
        allow_warnings=False,
    )
    return bool(conforms), str(report)


def main(memory_bytes: int, cpu_seconds: int) -> None:
    """Answer one question."""
    _validate(_WARM_SHAPES, "<urn:n> <urn:p> <urn:o> .\n")  # loads all that is needed, while files can be opened
    _give_up(memory_bytes, cpu_seconds)
    asked = sys.stdin.buffer.read()
    length = int.from_bytes(asked[:8])
    shapes, content = asked[8 : 8 + length], asked[8 + length :]
    conforms, report = _validate(shapes.decode(), content.decode())
    sys.stdout.write(json.dumps({"conforms": conforms, "report": report[:REPORT_CHARS_MAX]}))


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]))
