"""A book of plans for what changes: one plan for each number of hosts, and what moves between neighbouring pages.

All pages train one model with one batch, so that a job which loses a host goes on under another page from its last
checkpoint. Leaves out how pages are made (`planner.report.book_pages`) and run (`executor`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.files import Node, document, read_json, write_json
from planner.plan.file import PLAN_FORMAT, PLAN_VERSION, plan_from_node, plan_to_json
from planner.plan.whole import Plan

BOOK_FORMAT, BOOK_VERSION = "penstock-book", 1


@dataclass(frozen=True, slots=True)
class StateTransfer:
    """What ranks must hold under a plan and do not hold under the previous one: bytes of all of them, and seconds."""

    size_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """The plan for a number of hosts, and what moves there from the previous page (nothing to the first)."""

    hosts: int
    plan: Plan
    from_previous: StateTransfer = StateTransfer()

    @property
    def num_ranks(self) -> int:
        """Processes that run the plan."""
        return len(self.plan.orders)


@dataclass(frozen=True, slots=True)
class Book:
    """Pages in the order in which they were asked for.

    Raises
    ------
    InvalidInput
        Without a page, on two pages for one number of hosts, and on pages of unlike models or batches.
    """

    pages: tuple[Page, ...]

    def __post_init__(self) -> None:
        if not self.pages:
            raise InvalidInput("a book without pages; at least one is needed")
        hosts, times = Counter(page.hosts for page in self.pages).most_common(1)[0]
        if times > 1:
            raise InvalidInput(f"{times} pages are for {hosts} hosts; keep one of them")
        first = self.pages[0]
        for page in self.pages[1:]:
            for what, own, others in (
                ("model", first.plan.fingerprint, page.plan.fingerprint),
                ("batch", first.plan.batch.global_size, page.plan.batch.global_size),
            ):
                if own != others:
                    raise InvalidInput(
                        f"the page for {page.hosts} hosts has the {what} {others}, that for {first.hosts} has {own}; "
                        "all pages of a book are of one model and one batch"
                    )

    def for_ranks(self, num_ranks: int) -> Plan:
        """Return the plan that as many processes run; of several the one for the fewest hosts.

        Raises
        ------
        DoesNotMatch
            When no page is for as many.
        """
        fitting = [page for page in self.pages if page.num_ranks == num_ranks]
        if not fitting:
            known = ", ".join(f"{page.num_ranks} ({page.hosts} hosts)" for page in self.pages)
            raise DoesNotMatch(
                f"{num_ranks} ranks are running, and the book has pages for {known}; start as many as a page has, or "
                "make a book with a page for them"
            )
        return min(fitting, key=lambda page: page.hosts).plan


def read_book(path: str | Path) -> Book:
    """Read a book; see `costmodel.files` for what is refused."""
    return _book(read_json(path))


def read_plan_or_book(path: str | Path) -> Plan | Book:
    """Read a file that holds either of them."""
    root = read_json(path)
    is_book = isinstance(root.value, dict) and root.value.get("format") == BOOK_FORMAT
    return _book(root) if is_book else plan_from_node(root)


def _book(root: Node) -> Book:
    top = document(root, BOOK_FORMAT, BOOK_VERSION, ("pages",), ("extra",))
    return root.build(lambda: Book(tuple(_page(node, i) for i, node in enumerate(top["pages"].items()))))


def _page(node: Node, index: int) -> Page:
    fields = node.members(("hosts", "plan", "from_previous"))
    moved = fields["from_previous"].members(("bytes", "seconds"))
    found = StateTransfer(moved["bytes"].integer(), moved["seconds"].number())
    if index == 0 and found != StateTransfer():
        fields["from_previous"].fail("nothing moves to the first page: 0 bytes in 0 seconds")
    return Page(fields["hosts"].integer(1), plan_from_node(fields["plan"]), found)


def write_book(path: str | Path, pages: Sequence[Page]) -> None:
    """Write a book atomically; the same pages give the same bytes."""
    write_json(path, BOOK_FORMAT, BOOK_VERSION, book_to_json(Book(tuple(pages))))


def book_to_json(book: Book) -> dict[str, object]:
    """Return the JSON body of a book; each plan is a whole document, as a file of its own would have it."""
    return {
        "pages": [
            {
                "hosts": page.hosts,
                "plan": {"format": PLAN_FORMAT, "version": PLAN_VERSION, **plan_to_json(page.plan)},
                "from_previous": {"bytes": page.from_previous.size_bytes, "seconds": page.from_previous.seconds},
            }
            for page in book.pages
        ]
    }
