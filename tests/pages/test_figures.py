"""Each line of a figure is the method that the legend names, and no text or line is too small or too pale."""
import base64
import itertools
import json
import re
import struct
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
import pytest

from fedcl_repro.evidence.experiments import committed, committed_verdicts
from fedcl_repro.show.figures import GREYS, PALETTE, apart, as_seen, contrast, look_of
from fedcl_repro.show.scoreboard import scoreboard_figure

ROOT = Path(__file__).parents[2]


def drawn(draw):
    "The figure that a function draws and shows; the caller closes it."
    with patch.object(plt, 'show'): draw()
    return plt.gcf()


def function_of(page, name):
    "A function that a page of results defines in a folded cell."
    cells = json.loads((ROOT/'nbs'/f'{page}.ipynb').read_text(encoding='utf-8'))['cells']
    source = next(s for s in (''.join(c['source']) for c in cells) if f'def {name}(' in s)
    known = {}
    exec(source, known)
    return known[name]


def names_of_lines(fig):
    "(panel, name in the legend) -> what is drawn there under that look."
    legend = fig.legends[0]
    names = {look_of(h): t.get_text() for h, t in zip(legend.legend_handles, legend.get_texts())}
    return {(ax.get_title(), names[look_of(line)]): list(line.get_ydata())
            for ax in fig.axes for line in ax.lines if look_of(line) in names}


def test_each_line_of_figure_8_is_the_method_that_the_legend_names():
    from fedcl_repro.papers.mfcl.experiments import MFCL
    rows = committed('mfcl/fig8', 'lite')
    fig = drawn(lambda: function_of('papers/mfcl/fig8', 'dropout_view')(rows, 'lite'))
    runs = MFCL.runs(rows)
    for xi in (200, .01):
        for norm in ('TN', 'GN', 'BN'):
            at = runs[(runs.xi == xi) & (runs['drop'] == 0) & runs.label.str.startswith(f'MFCL({norm})')]
            line = names_of_lines(fig)[f'ξ = {xi:g}', f'MFCL({norm})']
            assert line[0] == pytest.approx(at.micro.mean()), f'ξ = {xi:g}, {norm}'
    plt.close(fig)


def test_colours_are_told_apart_on_white_and_without_red_or_green():
    pairs = [(a, b) for a in PALETTE for b in PALETTE if a < b]
    for colour in [*PALETTE.values(), *GREYS]: assert contrast(colour, 'white') >= 3, colour
    for a, b in pairs:
        one, other = PALETTE[a], PALETTE[b]
        assert min(apart(one, other), apart(as_seen(one), as_seen(other))) >= 20, (a, b)


def panel_widths(fig):
    "Widths of the panels in pixels, as the saved picture shows them."
    fig.canvas.draw()
    return [ax.get_window_extent().width for ax in fig.axes if ax.get_visible()]


def test_the_panels_of_the_learned_graph_are_wide_enough_and_its_table_is_sorted():
    from fedcl_repro.papers.mapl.graphs import embeddings_view, progress
    profile = committed_verdicts('mapl/fig4')[0]
    tables, rows = [], committed('mapl/fig4', profile)
    fig = drawn(lambda: tables.append(progress(rows, profile)))
    assert min(panel_widths(fig)) > 250
    assert list(tables[0].index) == sorted(tables[0].index)
    colours = {line.get_color() for ax in fig.axes for line in ax.lines if line.get_marker() != 'None'}
    assert colours <= set(GREYS) and len(fig.legends[0].get_texts()) == 6 # data sets have no method's colour
    plt.close(fig)


def test_each_group_of_a_scatter_plot_has_a_name():
    import numpy as np
    from fedcl_repro.show.maps import scatter
    ax = plt.figure().gca()
    scatter(ax, np.zeros((4, 2)), [0, 3, 3, 12], first=1)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ['1', '4', '13']
    plt.close()


def test_a_legend_refuses_a_name_that_looks_different_in_two_panels(monkeypatch):
    "As Figure 8 of MFCL would, if each panel chose its own dashes, by the order of its runs."
    from fedcl_repro.papers.mfcl import experiments as settings
    monkeypatch.setattr('fedcl_repro.show.figures.NORM_COLOURS', {})
    draw, orders = settings.draw_lines, itertools.cycle([1, -1])
    def in_another_order(ax, runs, x, names, floors, whole): draw(ax, runs[::next(orders)], x, names, floors)
    monkeypatch.setattr(settings, 'draw_lines', in_another_order)
    with pytest.raises(ValueError, match="looks different in two panels"):
        drawn(lambda: function_of('papers/mfcl/fig8', 'dropout_view')(committed('mfcl/fig8', 'lite'), 'lite'))
    plt.close()


@pytest.mark.parametrize('narrow', [False, True])
def test_no_word_of_the_scoreboard_is_cut_off(narrow):
    fig = scoreboard_figure(narrow=narrow)
    fig.canvas.draw()
    page = fig.bbox
    for text in fig.findobj(plt.Text):
        if not (text.get_visible() and text.get_text()): continue
        box = text.get_window_extent()
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text.get_text()
    plt.close(fig)


COLUMN = 800 # pixels of a page with an outline, in a window of 1280


REDRAWN_ELSEWHERE = 'bench/speed', 'distributed/ray' # measured on other machines


def stored_pictures():
    "(page, data, metadata) of every stored output of a page that has a picture."
    for path in sorted((ROOT/'nbs').rglob('*.ipynb')):
        page = path.relative_to(ROOT/'nbs').with_suffix('').as_posix()
        for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
            for output in cell.get('outputs', ()):
                data = {kind: ''.join(content) for kind, content in output.get('data', {}).items()}
                if {'image/png', 'image/svg+xml'} & set(data): yield page, data, output.get('metadata', {})


def committed_drawings():
    "(page, a figure of Matplotlib as SVG) of every stored output."
    for page, data, _ in stored_pictures():
        svg = data.get('image/svg+xml', '')
        if 'id="axes_1"' in svg: yield page, svg


def width_of(png): # in pixels; of a PNG in base64
    return struct.unpack('>I', base64.b64decode(png[:32])[16:20])[0]


def test_a_stored_picture_is_a_vector_or_has_twice_the_pixels_that_it_takes():
    shown = [(page, width_of(data['image/png']), look.get('image/png', {}).get('width', 0))
             for page, data, look in stored_pictures() if 'image/png' in data]
    assert len(shown) > 200
    soft = {page for page, wide, half in shown if not 0 < 2*half <= wide + 1}
    assert soft <= set(REDRAWN_ELSEWHERE), soft
    drawn_as_pixels = {page for page, data, _ in stored_pictures() if 'image/svg+xml' not in data}
    assert len(drawn_as_pixels) < 30, drawn_as_pixels # photographs, and many points


def smallest_text(svg):
    "In pixels, as a window of 1280 shows the figure; letters that are drawn as paths are not seen."
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    sizes = re.findall(r'font(?:-size)?: ?(?:[^;"]* )?([\d.]+)px', svg)
    return min(map(float, sizes), default=99) * min(96/72, COLUMN/width)


def most_in_a_row(svg):
    "Panels with ticks, without bars of colours, that stand beside each other; images in a row are one."
    boxes = []
    for part in re.split(r'<g id="axes_\d+">', svg)[1:]:
        if not re.search(r'id="[xy]tick_\d+"', part): continue
        path = re.search(r'<g id="patch_\d+">\s*<path d="([^"]*)"', part)
        points = [float(n) for n in re.findall(r'-?[\d.]+', path[1])] if path else [0]
        x, y = points[::2], points[1::2]
        if max(x) - min(x) > 40: boxes.append((min(y), max(y)))
    return max((sum(low < (a + b) / 2 < high for low, high in boxes) for a, b in boxes), default=0)


def test_no_text_of_a_committed_figure_is_small_and_two_panels_are_in_a_row():
    figures = list(committed_drawings())
    assert len(figures) > 50
    small = {page: round(smallest_text(svg), 1) for page, svg in figures if smallest_text(svg) < 9}
    crowded = {page: most_in_a_row(svg) for page, svg in figures if most_in_a_row(svg) > 2}
    assert (small, crowded) == ({}, {})


def without_caption(cells):
    "The cells with a picture below which no line in italics says, before the next heading, what it shows."
    for k, cell in enumerate(cells):
        if not any({'image/png', 'image/svg+xml'} & set(o.get('data', {})) for o in cell.get('outputs', ())):
            continue
        below = '\n\n'.join(''.join(c['source']) for c in cells[k + 1:] if c['cell_type'] == 'markdown')
        if not re.search(r'(?m)^\*(?!\*)', re.split(r'(?m)^#+ ', below)[0]): yield cell['id']


def test_every_picture_has_a_caption_in_its_section():
    "Its first sentence is the alternative text on the site."
    lacking = {}
    for path in sorted((ROOT/'nbs').rglob('*.ipynb')):
        found = list(without_caption(json.loads(path.read_text(encoding='utf-8'))['cells']))
        if found: lacking[path.stem] = found
    assert not lacking
