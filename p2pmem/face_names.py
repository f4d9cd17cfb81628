"""How people and models name a context graph where a face wants it in full."""

from __future__ import annotations

from p2pmem.api.problems import BadRequestError
from p2pmem.face import Face, NotFoundError


async def graph_of(face: Face, named: str | None, how: str = "") -> str:
    """The graph that is named by its name, IRI or slug, or the only one there is. `how` to name one is told who must.

    Raises `NotFoundError`, or `BadRequestError` where several could be meant.
    """
    if named is not None and "/" in named:
        return named
    graphs = await face.graphs()
    if named is not None:
        graphs = tuple(it for it in graphs if it.graph.endswith(f"/{named}"))
        if not graphs:
            raise NotFoundError(f"no context graph here is called {named!r}; `p2pmem graph list` shows them")
    if not graphs:
        raise NotFoundError("this node is in no context graph: `p2pmem graph create` founds one, `join` enters one")
    if len(graphs) > 1:
        raise BadRequestError(f"say which context graph{how}: {', '.join(it.graph for it in graphs)}")
    return graphs[0].graph
