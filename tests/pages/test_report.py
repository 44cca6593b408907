"""The report begins with what was found, counts what was executed, and shows no text of a store as HTML."""
import html
import json
import re

from fedcl_repro.publish import execute as pages
from fedcl_repro.publish.report import report_summary, write_report
from fedcl_repro.runs.store import Store

SCRIPT = '<img src=x onerror=alert(1)>'


def page(tmp_path, status='ok', **about):
    "A row of the report whose page shows a table and a figure."
    path = tmp_path/f'{SCRIPT}.ipynb'
    outputs = [dict(output_type='stream', name='stdout', text=SCRIPT),
               dict(output_type='display_data', data={'image/png': 'aGk='})]
    cell = dict(cell_type='code', source='', metadata=dict(tags=[]), outputs=outputs)
    path.write_text(json.dumps(dict(cells=[cell])))
    about = dict(name='toys/table1', title=SCRIPT, path=str(path), error=SCRIPT) | about
    return about | dict(status=status, seconds=1., note=SCRIPT)


def verdict(word): return dict(what=SCRIPT, word=word, evidence='+99 points', source=SCRIPT, kind='claim')


def test_nothing_is_shown_as_html(tmp_path):
    shown = [page(tmp_path, name=f'toys/{SCRIPT}'), page(tmp_path, status=SCRIPT)]
    verdicts = {f'toys/{SCRIPT}': [verdict(SCRIPT), verdict('holds')]}
    about = dict(profile='lite', device=SCRIPT, trained=SCRIPT) | {SCRIPT: SCRIPT}
    text = write_report(shown, tmp_path, verdicts, about).read_text()
    assert SCRIPT not in text and 'onerror=alert(1)>' not in text
    assert text.count(html.escape(SCRIPT)) > 10
    assert "default-src 'none'" in text, 'a browser runs no script of a page'


def test_only_executed_pages_count_and_have_verdicts(tmp_path):
    shown = [page(tmp_path, status='not executed'), page(tmp_path, status='failed', name='toys/fig1')]
    verdicts = {'toys/table1': [verdict('holds')], 'toys/fig1': [verdict('holds')]}
    about = dict(profile='lite')
    text = write_report(shown, tmp_path, verdicts, about).read_text()
    assert '0 of 2 pages ran, 1 failed' in text and '+99 points' not in text
    assert '0 of 2 pages ran, 1 failed' in report_summary(shown, verdicts, about)[0]


def test_verdicts_of_an_earlier_execution_are_removed(tmp_path, monkeypatch):
    store, name = Store(tmp_path/'runs'), 'fedcosr/fig4'
    path = pages.verdicts_path(store, name, 'quick')
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([verdict('holds')]))
    monkeypatch.setattr(pages, 'do_pages', lambda tasks, jobs: {})
    (row,) = pages.execute_pages([name], 'quick', tmp_path, dict(store=str(store.root)), 1)
    assert row['status'] == 'not executed' and pages.read_verdicts(store, name, 'quick') == []


def words_of(text): return html.unescape(re.sub('<[^>]*>', ' ', text)).split()


def test_a_report_is_made(report):
    "Trained in an environment of the base requirements; digits judge nothing."
    code, folder, said = report
    assert code == 0, said[-3000:]
    sentence = 'FedSSC is more accurate than MOON'
    assert sentence in (folder/'report'/'index.html').read_text(encoding='utf-8')
    verdicts = json.loads((folder/'runs'/'verdicts'/'fedssc-table1-quick.json').read_text())
    found = [v for v in verdicts if v['what'].startswith(sentence)]
    assert found and {v['word'] for v in found} == {'not run'}


def test_first_screen(report):
    "Findings, a figure and the run, in few words; no claims on digits, and no number that is none."
    code, folder, said = report
    assert code == 0, said[-3000:]
    text = (folder/'report'/'index.html').read_text(encoding='utf-8')
    first = text[text.index('<h1>'):text.index('id="pages"')]
    beside = re.sub(r'<li>.*?</li>', '', first, flags=re.S) # a finding has its conditions, in many words
    assert len(words_of(beside)) < 400 and len(words_of(first)) < 500
    assert 'Do shared class representations' in first and 'Your run' in first and 'runs of' in first
    assert '>Claims</h2>' not in text
    assert 'nan' not in words_of(re.sub('src="[^"]*"', '', text))
    assert 'Your run: ' in said and 'FedCRL, FedCoSR: ' in said
