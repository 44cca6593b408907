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
for (const part of document.querySelectorAll('.table-wrapper, pre, .cell_output')) {      // keys scroll what is wide
  if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
}
if (location.protocol === 'file:') {      // a browser lets no page read another file: search in texts.js
  window.fetch = async (url) => {
    const page = new URL(url, location).pathname, known = typeof TEXTS === 'undefined' ? {} : TEXTS;
    const fitting = Object.keys(known).filter((n) => page.endsWith('/' + n));
    const name = fitting.sort((a, b) => b.length - a.length)[0];
    const main = document.createElement('div');
    main.setAttribute('role', 'main');
    main.textContent = known[name] || '';
    return new Response(main.outerHTML);
  };
}
