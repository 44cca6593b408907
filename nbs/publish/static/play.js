// Three small drawings with a slider; each says the same as the still picture beside it. No server, no library.
const SVG = 'http://www.w3.org/2000/svg';
const COLOURS = ['#223594', '#d4700f', '#8a929b', '#006442', '#96280c', '#9073c2', '#8f9758', '#b6868c', '#1c93fd', '#a63a83'];
function add(parent, name, about, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(about)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}
function randoms(seed) {      // the same numbers at each visit
  let s = seed >>> 0;
  return () => { s = (s + 0x6D2B79F5) >>> 0; let t = Math.imul(s ^ s >>> 15, 1 | s);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t; return ((t ^ t >>> 14) >>> 0) / 4294967296; };
}
function normal(random) { return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()); }
function gamma(shape, random) {      // Marsaglia and Tsang
  if (shape < 1) return gamma(shape + 1, random) * Math.pow(1 - random(), 1 / shape);
  const d = shape - 1 / 3, c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = normal(random), v = Math.pow(1 + c * x, 3);
    if (v > 0 && Math.log(1 - random()) < .5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}
function partition(svg, beta) {      // each class is dealt to ten clients by one Dirichlet draw
  const random = randoms(7);
  for (let c = 0; c < 10; c++) {
    const parts = Array.from({length: 10}, () => gamma(beta, random)), sum = parts.reduce((a, b) => a + b, 0) || 1;
    parts.forEach((part, i) => add(svg, 'circle', {cx: 75 + 48 * i, cy: 14 + 21 * c, r: 10 * Math.sqrt(part / sum), fill: COLOURS[c]}));
    add(svg, 'text', {x: 0, y: 18 + 21 * c}, (c ? '' : 'class ') + c);
  }
  for (let i = 0; i < 10; i++) add(svg, 'text', {x: 75 + 48 * i, y: 236, 'text-anchor': 'middle'}, i);
  add(svg, 'text', {x: 0, y: 236}, 'client');
}
function contrast(svg, temp) {      // the probability that the loss gives each class: softmax of cosine / temperature
  const at = [.35, 1.6, 3.5].map((angle) => [angle, Math.cos(angle)]), total = at.reduce((s, [, cos]) => s + Math.exp(cos / temp), 0);
  add(svg, 'circle', {cx: 100, cy: 115, r: 95, fill: 'none', stroke: '#8a929b'});
  add(svg, 'text', {x: 204, y: 101}, 'an image');
  at.forEach(([angle, cos], k) => {
    const share = Math.exp(cos / temp) / total, x = 100 + 95 * Math.cos(angle), y = 115 - 95 * Math.sin(angle);
    add(svg, 'line', {x1: 195, y1: 115, x2: x, y2: y, stroke: COLOURS[k], 'stroke-width': 1 + 9 * share, opacity: .7});
    add(svg, 'circle', {cx: x, cy: y, r: 8, fill: COLOURS[k]});
    add(svg, 'text', {x: 260, y: 50 + 70 * k}, 'class mean ' + (k + 1) + ', cosine ' + cos.toFixed(2));
    add(svg, 'rect', {x: 260, y: 58 + 70 * k, width: 200 * share, height: 14, fill: COLOURS[k]});
    add(svg, 'text', {x: 266 + 200 * share, y: 71 + 70 * k}, (100 * share).toFixed(0) + ' %');
  });
  add(svg, 'circle', {cx: 195, cy: 115, r: 6, fill: '#23272e'});
}
function keep(svg, g) {      // exp(-gamma * loss)
  const x = (loss) => 60 + 115 * loss, y = (share) => 195 - 180 * share;
  let path = '';
  for (let k = 0; k <= 80; k++) path += (k ? 'L' : 'M') + x(k / 20).toFixed(1) + ' ' + y(Math.exp(-g * k / 20)).toFixed(1);
  add(svg, 'path', {d: 'M60 15V195H525', fill: 'none', stroke: '#8a929b'});
  add(svg, 'path', {d: path, fill: 'none', stroke: COLOURS[0], 'stroke-width': 3});
  [0, 1, 2, 3, 4].forEach((loss) => add(svg, 'text', {x: x(loss), y: 213, 'text-anchor': 'middle'}, loss));
  [0, .5, 1].forEach((share) => add(svg, 'text', {x: 54, y: y(share) + 5, 'text-anchor': 'end'}, (100 * share) + ' %'));
  add(svg, 'text', {x: 525, y: 234, 'text-anchor': 'end'}, 'contrastive loss, nats');
  add(svg, 'text', {x: 525, y: 22, 'text-anchor': 'end'}, 'share of its own body that a client keeps');
}
const PLAYS = {      // id: drawing, its name, the slider's words, least, most, first (powers of ten)
  'play-partition': [partition, 'Ten clients and ten classes: the area of a dot is the share of a class that a client gets', 'β, from very uneven to even', -2, 2, -.5],
  'play-contrast': [contrast, 'The probability that the loss gives each class, for one image', 'temperature', -1.3, .3, -1],
  'play-keep': [keep, 'The share that a client keeps falls with its loss', 'γ', -1.3, 1, -.1],
};
for (const [id, [draw, name, words, least, most, first]] of Object.entries(PLAYS)) {
  const place = document.getElementById(id);
  if (!place) continue;
  place.append(name + '.');
  const label = place.appendChild(document.createElement('label'));
  label.append(words + ' ');
  const slider = label.appendChild(document.createElement('input'));
  Object.assign(slider, {type: 'range', min: least, max: most, step: .02, value: first});
  const said = label.appendChild(document.createElement('output'));
  const svg = add(place, 'svg', {viewBox: '0 0 540 240', width: 540, role: 'img', 'aria-label': name});
  const show = () => {
    const value = Math.pow(10, slider.value);
    said.textContent = value < 10 ? value.toPrecision(2) : value.toFixed(0);
    svg.replaceChildren();
    draw(svg, value);
  };
  slider.oninput = show;
  show();
}
