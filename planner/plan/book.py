"""A book of plans for what changes: one plan for each number of hosts, and what moves between neighbouring pages.

All pages train one model with one batch, so that a job which loses a host goes on under another page from its last
checkpoint. Leaves out how pages are made (`planner.report.book_pages`) and run (`executor`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from costmodel.codec import NEEDED, Json, Positive, record
from costmodel.documents import Document
from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.files import Node, read_json
from planner.plan.file import PLAN
from planner.plan.whole import Plan


@dataclass(frozen=True, slots=True)
class StateTransfer:
    """What ranks must hold under a plan and do not hold under the previous one: bytes of all of them, and seconds."""

    size_bytes: Annotated[int, NEEDED, Json("bytes")] = 0
    seconds: Annotated[float, NEEDED] = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """The plan for a number of hosts, and what moves there from the previous page (nothing to the first)."""

    hosts: Positive
    plan: Annotated[Plan, Json(form=PLAN.whole)]
    from_previous: Annotated[StateTransfer, NEEDED] = StateTransfer()

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

    pages: Annotated[tuple[Page, ...], Json(rules={"minItems": 1})]

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


def _moved(values: dict[str, Any], node: Node) -> None:
    """Refuse a book to whose first page something moves."""
    if values["pages"] and values["pages"][0].from_previous != StateTransfer():
        first = node.child("pages").items()[0]
        first.child("from_previous").fail("nothing moves to the first page: 0 bytes in 0 seconds")


BOOK: Document[Book] = Document("penstock-book", 1, record(Book, settle=_moved), ("extra",))


def read_book(path: str | Path) -> Book:
    """Read a book; see `costmodel.files` for what is refused."""
    return BOOK.read(path)


def read_plan_or_book(path: str | Path) -> Plan | Book:
    """Read a file that holds either of them."""
    root = read_json(path)
    is_book = isinstance(root.value, dict) and root.value.get("format") == BOOK.format
    return BOOK.read_node(root) if is_book else PLAN.read_node(root)


def write_book(path: str | Path, pages: Sequence[Page]) -> None:
    """Write a book atomically; the same pages give the same bytes."""
    BOOK.write(path, Book(tuple(pages)))


def book_to_json(book: Book) -> dict[str, object]:
    """Return the JSON body of a book; each plan is a whole document, as a file of its own would have it."""
    return BOOK.form.write(book)  # type: ignore[no-any-return]
