for (const block of document.querySelectorAll('div.highlight')) {      // a button that copies the code
  const button = document.createElement('button');
  const pre = block.querySelector('pre');
  button.className = 'copy';
  button.type = 'button';
  button.textContent = 'Copy';
  const select = () => { getSelection().selectAllChildren(pre); };      // without https there is no clipboard
  button.onclick = async () => {
    try { await navigator.clipboard.writeText(pre.textContent); } catch { return select(); }
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  };
  block.append(button);
}
for (const image of document.querySelectorAll('div.cell_output img')) {      // a click shows it at full size
  image.onclick = () => { window.open(image.src); };
}
addEventListener('load', () => {      // keys scroll what is wide
  for (const part of document.querySelectorAll('.table-wrapper, pre, .cell_output, .picture'))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
});
addEventListener('load', () => {      // on a telephone a long page opens in sections
  if (innerWidth > 736 || document.documentElement.scrollHeight < 15000) return;
  const folded = (title, nodes) => {
    const fold = document.createElement('details'), summary = document.createElement('summary');
    fold.className = 'part';
    summary.append(title);
    fold.append(summary, ...nodes);
    return fold;
  };
  const headings = document.querySelectorAll('article h2');
  for (const heading of headings) {
    const section = heading.parentNode, nodes = [...section.childNodes];
    section.append(folded(heading, nodes.slice(nodes.indexOf(heading) + 1)));
  }
  if (!headings.length)      // a page of the library: its functions and classes
    for (const body of document.querySelectorAll('dl.py > dd')) body.append(folded('What it is', [...body.childNodes]));
  const show = () => {      // where an address points to
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    for (const fold of document.querySelectorAll('details.part'))
      if (fold.contains(place) || fold.parentNode === place) fold.open = true;
    place.scrollIntoView();
  };
  addEventListener('hashchange', show);
  show();
});
if (typeof TEXTS !== 'undefined') {      // on the page of the search, which has the texts of all pages
  window.fetch = async (url) => {
    const page = new URL(url, location).pathname;
    const name = Object.keys(TEXTS).filter((n) => page.endsWith('/' + n)).sort((a, b) => b.length - a.length)[0];
    const main = document.createElement('div');
    main.setAttribute('role', 'main');
    main.textContent = TEXTS[name] || '';
    return new Response(main.outerHTML);
  };
  const query = (new URLSearchParams(location.search).get('q') || '').toLowerCase().replace(/\bmy\b/g, 'own');
  const words = query.split(/\W+/).filter((w) => w.length > 2).map((w) => new RegExp('\\b' + w.slice(0, 6), 'gi'));
  const times = (text, word) => (text.match(word) || []).length;
  document.addEventListener('DOMContentLoaded', () => {      // what a page is about counts more than what it mentions
    Scorer.score = ([page, title]) => {
      const text = TEXTS[page + '.html'] || '';
      const names = `${title} ${page.split('/').pop().replace(/_/g, ' ')}`, written = /^(library|internals|changelog)/.test(page);
      const points = words.map((w) => 8 * !!times(names, w) + 4 * !!times(text.slice(0, 200), w) + Math.log2(1 + times(text, w)));
      const kind = written ? -40 : title.toLowerCase() === query.trim() ? 10 : 5 * /^(index|course|tours)/.test(page);
      return points.reduce((a, b) => a + b, kind);
    };
  });
}
