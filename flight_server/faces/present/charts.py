"""Charts as inline SVG: axes with numbers, a title on each mark, colours by class from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flight_server.core.views import numbers
from flight_server.core.views.shapes import Bar, text_at
from flight_server.faces.present.text import harmless

LEFT, RIGHT, TOP, BOTTOM = 56, 10, 10, 22  # margins for the axes, in pixels
GAP = 1.0  # pixels between bars
CHARACTER = 6.0  # width of a label's character, in pixels


def axis(value: float) -> str:
    """A number as the label of an axis, which has little room: 1234567 is 1.235M."""
    return numbers.brief(value, unit_from=1e4)


def histogram(bars: Sequence[Bar], logical_type: str, label: str, width: int = 420, height: int = 130) -> str:
    """Draws bars over their values; the vertical axis starts at zero rows.

    Args:
        bars: As `shapes.bars` makes them.
        logical_type: The column's type; decides the labels of the axis.
        label: Text alternative for screen readers.
        width, height: Pixels.
    """
    if not bars:
        return ""
    top = max(bar.rows for bar in bars) or 1.0
    inner_width, inner_height = width - LEFT - RIGHT, height - TOP - BOTTOM
    step = inner_width / max(len(bars), 4)  # keeps a single bar from filling the chart
    marks = []
    for place, bar in enumerate(bars):
        tall = inner_height * bar.rows / top
        if bar.rows > 0:
            tall = max(tall, 1.0)  # keeps the smallest bar visible
        low, high = text_at(bar.low, logical_type), text_at(bar.high, logical_type)
        at = low if low == high else f"{low} … {high}"
        kind = "bar tail" if bar.is_tail else "bar"
        marks.append(
            f'<rect class="{kind}" x="{LEFT + place * step:.1f}" y="{TOP + inner_height - tall:.1f}" '
            f'width="{max(step - GAP, 0.5):.1f}" height="{tall:.1f}">'
            f"<title>{_text(at)}: {numbers.count(bar.rows)} rows</title></rect>"
        )
    texts = _axis_labels(bars, logical_type)
    if len(texts) == 3 and sum(len(text) + 2 for _, text, _ in texts) * CHARACTER > inner_width:
        del texts[1]  # the three labels would overlap
    words = "".join(
        f'<text x="{LEFT + place * step:.1f}" y="{height - 6}" text-anchor="{anchor}">{_text(text)}</text>'
        for place, text, anchor in texts
    )
    cuts = "".join(
        f'<path class="cut" d="M{LEFT + place * step - GAP / 2:.1f} {TOP}V{TOP + inner_height}"/>'
        for place, is_cut in ((1, bars[0].is_tail), (len(bars) - 1, bars[-1].is_tail))
        if is_cut
    )
    return _svg("histogram", label, width, height, _frame(width, height, 0.0, top) + "".join(marks) + cuts + words)


def _axis_labels(bars: Sequence[Bar], logical_type: str) -> list[tuple[float, str, str]]:
    """Labels below the bars: place in bars, text, and where the text is anchored. A tail has both of its ends."""
    first, last = bars[0], bars[-1]
    if len(bars) == 1 or first.low == last.high:
        return [(0, text_at(first.low, logical_type), "start")]
    ends = [
        " … ".join(text_at(point, logical_type) for point in points)
        for points in (
            (first.low, first.high) if first.is_tail else (first.low,),
            (last.low, last.high) if last.is_tail else (last.high,),
        )
    ]
    texts = [(0.0, ends[0], "start"), (float(len(bars)), ends[1], "end")]
    if len(bars) > 2:
        middle = len(bars) // 2
        center = middle + (0.5 if bars[middle].is_value else 0)
        texts.insert(1, (center, text_at(bars[middle].low, logical_type), "middle"))
    return texts


def _extent(values: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for some values, and for what was expected as far as it is not far beyond them."""
    low, high = min(values), max(values)
    room = (high - low) or abs(high) or 1.0
    low, high = max(min([low, *expected]), low - room), min(max([high, *expected]), high + room)
    if low > 0 and low > high / 2 and low != high:
        low -= (high - low) * 0.1  # the axis does not start at zero; its labels show that
    else:
        low = min(0.0, low)
    return low, high if high > low else low + 1.0


def line(
    points: Sequence[tuple[str, float | None]],
    label: str,
    width: int = 640,
    height: int = 160,
    bands: Sequence[Sequence[float] | None] = (),
    links: Sequence[str] = (),
) -> str:
    """Draws a value over snapshots, with gaps where it is unknown.

    Args:
        points: Label and value of each snapshot, oldest first.
        label: Text alternative for screen readers.
        width, height: Pixels.
        bands: Lowest and highest expected value of each point; those far beyond the values are cut.
        links: Address that each point leads to; none for none.
    """
    values = [value for _, value in points if value is not None]
    if not values:
        return ""
    low, high = _extent(values, [bound for band in bands if band is not None for bound in band])
    inner_width, inner_height = width - LEFT - RIGHT, height - TOP - BOTTOM
    step = inner_width / max(len(points) - 1, 1)
    path, marks, pen = [], [], "M"

    def down(value: float) -> float:
        return TOP + inner_height * (1 - (min(max(value, low), high) - low) / (high - low))

    shades = "".join(
        f'<rect class="expected" x="{max(LEFT + (place - 0.5) * step, LEFT):.1f}" y="{down(band[1]):.1f}" '
        f'width="{step:.1f}" height="{max(down(band[0]) - down(band[1]), 1.0):.1f}">'
        f"<title>{_text(points[place][0])}: expected "
        f"{numbers.number(band[0])} to {numbers.number(band[1])}</title></rect>"
        for place, band in enumerate(bands)
        if band is not None
    )
    for place, (name, value) in enumerate(points):
        if value is None:
            pen = "M"
            continue
        x, y = LEFT + place * step, down(value)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        title = f"{_text(name)}: {numbers.number(value)}"
        dot = f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{title}</title></circle>'
        link = links[place] if links else ""
        marks.append(f'<a href="{_text(link)}" aria-label="{title}">{dot}</a>' if link else dot)
    words = _ends([name for name, _ in points], width, height)
    body = f'{_frame(width, height, low, high)}{shades}<path class="line" d="{" ".join(path)}"/>{"".join(marks)}{words}'
    return _svg("history", label, width, height, body, is_one_image=not links)


def _ends(names: Sequence[str], width: int, height: int) -> str:
    """The labels of the first and the last point below an axis."""
    ends = [(LEFT, names[0], "start")]
    if len(names) > 1:
        ends.append((width - RIGHT, names[-1], "end"))
    return "".join(
        f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">{_text(name)}</text>' for x, name, anchor in ends
    )


def spark(rows: Sequence[float], label: str, width: int = 96, height: int = 20) -> str:
    """Draws the rows of a histogram's bars without axes, for a cell of a table."""
    top = max(rows, default=0.0)
    if top <= 0:
        return ""
    step = width / max(len(rows), 8)
    wide = max(step - GAP, 0.5)
    marks = "".join(
        f"M{place * step:.1f} {height}v-{max(height * tall / top, 1.0):.1f}h{wide:.1f}V{height}"
        for place, tall in enumerate(rows)
        if tall > 0
    )
    return _svg("spark", label, width, height, f'<path class="bar" d="{marks}"/>')


def spark_line(shares: Sequence[float | None], label: str, width: int = 48, height: int = 14) -> str:
    """Draws shares from 0 to 1 over snapshots, without axes, for a cell of a table; nothing for fewer than two."""
    known = [(place, value) for place, value in enumerate(shares) if value is not None]
    if len(known) < 2:
        return ""
    step = (width - 2) / (len(shares) - 1)
    path = "L".join(f"{1 + place * step:.1f} {1 + (height - 2) * (1 - value):.1f}" for place, value in known)
    return _svg("spark", label, width, height, f'<path class="line" d="M{path}"/>')


def share(part: float | None, label: str, width: int = 48, height: int = 8) -> str:
    """Draws a bar filled by a share from 0 to 1; nothing if the share is unknown."""
    if part is None:
        return ""
    filled = 0.0 if part <= 0 else max(width * min(part, 1.0), 1.0)
    body = (
        f'<rect class="track" x="0" y="0" width="{width}" height="{height}"/>'
        f'<rect class="bar" x="0" y="0" width="{filled:.1f}" height="{height}"/>'
    )
    return _svg("share", label, width, height, body)


def _frame(width: int, height: int, low: float, high: float) -> str:
    """Draws the axes, with the lowest and highest number of the vertical one."""
    bottom = height - BOTTOM
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{width - RIGHT}"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 8}" text-anchor="end">{axis(high)}</text>'
        f'<text x="{LEFT - 5}" y="{bottom}" text-anchor="end">{axis(low)}</text>'
    )


def _svg(kind: str, label: str, width: int, height: int, body: str, *, is_one_image: bool = True) -> str:
    """A chart; one with links is a group of them, since an image hides what is in it."""
    role = "img" if is_one_image else "group"
    return (
        f'<svg class="{kind}" role="{role}" aria-label="{_text(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{body}</svg>'
    )


def _text(value: str) -> str:
    return escape(harmless(value))
