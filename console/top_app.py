"""Terminal application of `windrow top`, by Textual: tabs with a table each, a line to find, a screen to explain."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, Tabs
from textual.widgets import Tab as TabButton

from windrow.console.state import flat
from windrow.console.tabs import Listing, Query, Tab, cells, columns_of, status, tabs_of
from windrow.console.text import readable
from windrow.core.errors import WindrowError
from windrow.runners.state import State

#: A commit, the title of a view and a query.
Seen: TypeAlias = tuple[int, str, Query]
#: The job is looked at so often, in seconds.
EVERY_S = 1.0


class Explanation(ModalScreen[None]):
    """A row with all of its values, and its origin."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Back")]
    CSS = """
    Explanation { align: center middle; }
    Explanation VerticalScroll { width: 95%; height: 90%; border: solid $accent; background: $surface; padding: 0 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self.text), id="explanation")
        yield Footer()


class TopApp(App[None]):
    """The views of one job. `/` finds, `o` orders by the next column, `r` reverses, Enter explains, `q` quits."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: 1; color: $text-muted; padding: 0 1; }
    #notice { height: auto; color: $text-warning; padding: 0 1; }
    #find { display: none; height: 3; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find", key_display="/"),
        Binding("o", "order", "Order"),
        Binding("r", "reverse", "Reverse"),
        Binding("left_square_bracket,shift+tab", "move(-1)", "Tab left", show=False, priority=True),
        Binding("right_square_bracket,tab", "move(1)", "Next tab", priority=True, key_display="tab"),
        Binding("escape", "clear", "Clear", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.views: list[Tab] = tabs_of(state)
        self.queries = {view.title: Query() for view in self.views}
        #: The rows on screen, and the view that they are of.
        self.listing, self.listed = Listing([], 0), self.views[0]
        self.widths: dict[str, int] = {}
        #: The commit, the view and the query of these rows.
        self.seen: Seen | None = None
        #: A `State` answers one thread at a time.
        self.turn = threading.Lock()

    def compose(self) -> ComposeResult:
        yield Static(id="status")
        yield Tabs(
            *(TabButton(Text(readable(view.title)), id=f"view-{n}") for n, view in enumerate(self.views))
        )
        yield Input(placeholder="find rows that contain", id="find")
        yield Static(id="notice")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(EVERY_S, self.follow)
        self.query_one(DataTable).focus()

    @property
    def view(self) -> Tab:
        """The view of the active tab."""
        active = self.query_one(Tabs).active
        return self.views[int(active.removeprefix("view-") or 0) if active else 0]

    # -- reading ----------------------------------------------------------------------------------------------------

    def on_tabs_tab_activated(self) -> None:
        self.read(refresh=False)

    def follow(self) -> None:
        """Read the view again, unless it is being read: the job may have committed."""
        if not self.turn.locked():
            self.read(refresh=True)

    @work(thread=True, exclusive=True, group="read")
    def read(self, *, refresh: bool) -> None:
        """Read the rows of the active view, in a thread."""
        view = self.view
        query = self.queries[view.title]
        with self.turn:
            try:
                if refresh:
                    self.state.refresh()
                notice = ""
                seen: Seen | None = (self.state.commit, view.title, query)
                listing = self.listing if seen == self.seen else view.read(self.state, query)
                line = status(self.state)
            except (WindrowError, OSError) as error:
                listing, line, notice, seen = None, "", f"cannot be read: {error}", None
        self.call_from_thread(self.show, view, listing, line, notice, seen)

    def show(self, view: Tab, listing: Listing | None, line: str, notice: str, seen: Seen | None) -> None:
        """Show what was read. Where nothing could be, what was shown before stays."""
        if view is not self.view:
            return
        query = self.queries[view.title]
        if listing is None:
            self.query_one("#notice", Static).update(Text(readable(notice)))
            self.seen = None
            return
        self.listing, self.listed, self.seen = listing, view, seen
        self.query_one("#status", Static).update(Text(readable(line)))
        facts = [f"{listing.total:,} rows" if listing.total > len(listing.rows) else ""]
        facts += [f"with {query.contains!r}" if query.contains else ""]
        facts += [f"by {query.order}" if query.order else "", "descending" if query.descending else ""]
        empty = "" if listing.rows else listing.notice or "nothing here"
        shown = " · ".join(fact for fact in (empty, *facts) if fact)
        self.query_one("#notice", Static).update(Text(readable(shown)))
        table = self.query_one(DataTable)
        place, scrolled = table.cursor_row, table.scroll_offset
        columns = columns_of(listing)
        texts = [cells(row, columns) for row in listing.rows]
        widths = {
            name: max(len(readable(name)), *(len(text[n]) for text in texts), 0)
            for n, name in enumerate(columns)
        }
        if widths == self.widths:
            table.clear()
        else:
            self.widths = widths
            table.clear(columns=True)
            for name, width in widths.items():
                table.add_column(Text(readable(name)), width=width)
        for text in texts:
            table.add_row(*map(Text, text))
        if listing.rows:
            table.move_cursor(row=min(place, len(listing.rows) - 1), animate=False, scroll=False)
            table.scroll_to(*scrolled, animate=False)

    # -- keys -------------------------------------------------------------------------------------------------------

    def ask(self, query: Query) -> None:
        """Read the view under another query."""
        self.queries[self.view.title] = query
        self.read(refresh=False)

    def action_order(self) -> None:
        """Order by the next column; after the last by none."""
        query, orders = self.queries[self.view.title], [None, *self.listing.orders]
        at = orders.index(query.order) if query.order in orders else 0
        self.ask(replace(query, order=orders[(at + 1) % len(orders)]))

    def action_reverse(self) -> None:
        """Turn the order around."""
        query = self.queries[self.view.title]
        self.ask(replace(query, descending=not query.descending))

    def action_move(self, step: int) -> None:
        """Go to another tab."""
        tabs = self.query_one(Tabs)
        if step > 0:
            tabs.action_next_tab()
        else:
            tabs.action_previous_tab()

    def action_find(self) -> None:
        """Open the line that finds."""
        line = self.query_one("#find", Input)
        line.display = True
        line.value = self.queries[self.view.title].contains
        line.focus()

    def action_clear(self) -> None:
        """Close the line that finds, and show all rows."""
        self.close_find("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.close_find(event.value)

    def close_find(self, contains: str) -> None:
        """Close the line that finds, and show the rows that contain a text."""
        self.query_one("#find", Input).display = False
        self.query_one(DataTable).focus()
        self.ask(replace(self.queries[self.view.title], contains=contains))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self.listing.rows):
            self.explain(self.listed, self.listing.rows[event.cursor_row])

    @work(thread=True, exclusive=True, group="explain")
    def explain(self, view: Tab, row: Mapping[str, Any]) -> None:
        """Show a row with all of its values, and its origin."""
        text = "\n".join(f"{name}: {readable(str(value))}" for name, value in flat(dict(row)).items())
        if view.explain is not None:
            with self.turn:
                try:
                    text = view.explain(self.state, row) or text
                except (WindrowError, OSError) as error:
                    text += f"\n\ncannot be explained: {error}"
        self.call_from_thread(self.push_screen, Explanation(text))
