
"use strict";
// Reads the tiles that are there, and adds nothing to them: what is hidden, what has the focus, which one is large.
const find = (id) => document.getElementById(id);
const [filter, shown, none, large, theme] = ["filter", "shown", "none", "large", "theme"].map(find);
const tiles = [...document.querySelectorAll(".tile")].map((node) => ({
  node,
  open: node.querySelector(".open"),
  text: plain(node.textContent),
  values: node.dataset.values.split("\n").map(plain),
}));
let visible = tiles;
let current = tiles[0];

function plain(text) {
  return text.toLowerCase().replaceAll('"', "");
}

// A word is part of the text of a tile, or field=part of its value, or field==its value.
function matches({ text, values }, word) {
  const [, field, exact, part] = word.match(/^([^=]+)=(=?)([^]+)$/) || [];
  const of = (known) => known.startsWith(`${field}=`) && known.includes(part, field.length + 1);
  return text.includes(word) || (exact ? values.includes(`${field}=${part}`) : values.some(of));
}

function apply() {
  const words = (filter.value.match(/(?:[^\s"]|"[^"]*"?)+/g) || []).map(plain);
  visible = tiles.filter((tile) => words.every((word) => matches(tile, word)));
  const kept = new Set(visible);
  for (const tile of tiles) tile.node.hidden = !kept.has(tile);
  shown.textContent = `${visible.length} of ${tiles.length}`;
  none.hidden = visible.length > 0;
  select(kept.has(current) ? current : visible[0]);
}

// One tile at a time can be reached by Tab, the arrows do the rest.
function select(tile) {
  if (current) current.open.tabIndex = -1;
  current = tile;
  if (current) current.open.tabIndex = 0;
}

function go(tile) {
  if (!tile) return;
  select(tile);
  if (large.open) enlarge();
  else tile.open.focus();
}

function columns() {
  const top = visible[0].node.offsetTop;
  const end = visible.findIndex(({ node }) => node.offsetTop !== top);
  return end < 0 ? visible.length : end;
}

function move(step) {
  const last = visible.length - 1;
  const to = visible.indexOf(current) + step;
  if (Math.abs(step) === 1) go(visible[Math.max(0, Math.min(last, to))]);
  else if (to >= 0) go(visible[Math.min(last, to)]);
}

function enlarge() {
  const copy = current.node.cloneNode(true);
  const face = copy.querySelector(".face");
  const parts = [face, ...copy.querySelectorAll("audio, video, .silent, .fields")].filter(Boolean);
  const video = copy.querySelector("video.large"); // its still stands for it until it plays
  if (video && face.querySelector("img.still")) video.poster = face.querySelector("img.still").src;
  find("large-key").textContent = copy.querySelector(".key").textContent;
  find("large-sample").replaceChildren(...parts);
  if (!large.open) large.showModal();
  large.scrollTop = 0;
}

function act(key) {
  if (key === "ArrowLeft" || key === "h") move(-1);
  else if (key === "ArrowRight" || key === "l") move(1);
  else if (key === "ArrowUp" || key === "k") move(large.open ? -1 : -columns());
  else if (key === "ArrowDown" || key === "j") move(large.open ? 1 : columns());
  else if (key === "Home") go(visible[0]);
  else if (key === "End") go(visible[visible.length - 1]);
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["audio", "video"].includes(event.target.localName)) return;
  if (event.target === filter) {
    if (event.key === "Escape" && !filter.value) filter.blur();
    if (!["Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    go(current);
  } else if (event.key === "/" && !large.open) {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (visible.length && act(event.key)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-filter]");
  if (button) {
    filter.value = filter.value === button.dataset.filter ? "" : button.dataset.filter;
    apply();
  }
  const tile = tiles.find(({ open }) => open.contains(event.target));
  if (tile) {
    select(tile);
    enlarge();
  }
  if (event.target === large) large.close();
});

theme.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
find("before").addEventListener("click", () => move(-1));
find("after").addEventListener("click", () => move(1));
find("close").addEventListener("click", () => large.close());
large.addEventListener("close", () => {
  find("large-sample").replaceChildren(); // a sound that plays ends
  current.open.focus();
});
filter.addEventListener("input", apply);
for (const { open } of tiles) open.tabIndex = -1;
if (matchMedia("(max-width: 500px)").matches) for (const card of document.querySelectorAll(".card")) card.open = false;
theme.hidden = find("bar").hidden = false;
apply();
