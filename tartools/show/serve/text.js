// Text and JSON of a sample: wrapped, and folded where they are long.

import { button, count, make } from "./dom.js";

const LINES_SHOWN = 24; // of a text, before it is folded
const CHARACTERS_SHOWN = 3000;
const LIST_CHARACTERS = 72; // of a list that is put on one line
const OPEN_DEPTH = 2; // levels of JSON that are open at first
const OPEN_LINES = 40; // a longer object or list is folded at first, unless it is the outermost

export function textBlock(text) {
  const node = make("pre", { class: "text", text });
  if (text.split("\n", LINES_SHOWN + 1).length <= LINES_SHOWN && text.length <= CHARACTERS_SHOWN) return node;
  node.classList.add("folded");
  node.tabIndex = 0; // to scroll it by keys
  const more = button("Show all of the text", () => {
    const folded = node.classList.toggle("folded");
    more.textContent = folded ? "Show all of the text" : "Show less";
  }, { class: "link" });
  return make("div", {}, node, more);
}

// Fold JSON at its brackets. It is text, printed with one value a line, and stays as it is: a number like
// 12345678901234567890 would change if it were parsed here.
export function jsonBlock(text) {
  const root = make("div", { class: "json" });
  const lines = joinLists(text.split("\n"));
  const stack = [root];
  for (const [n, line] of lines.entries()) {
    const top = stack[stack.length - 1];
    const plain = line.trim();
    if (/^[\]}]/.test(plain) && stack.length > 1) {
      stack.pop();
      top.append(jsonLine(line));
    } else if (/[[{]$/.test(plain) && n < lines.length - 1) {
      const length = linesInside(lines, n);
      const open = stack.length <= OPEN_DEPTH && (stack.length === 1 || length <= OPEN_LINES);
      const summary = make(
        "summary",
        {},
        jsonLine(line),
        make("span", { class: "soft inside", text: `… ${count(length)} ${length === 1 ? "line" : "lines"}` }),
      );
      const node = make("details", { open }, summary);
      top.append(node);
      stack.push(node);
    } else {
      top.append(jsonLine(line));
    }
  }
  return root;
}

// Put lists of a few plain values, such as boxes, on one line.
function joinLists(lines) {
  const joined = [];
  for (let n = 0; n < lines.length; n += 1) {
    let end = n + 1;
    while (/\[$/.test(lines[n]) && /^\s*["\-\dtfnNI]/.test(lines[end] ?? "") && !/[[{]$/.test(lines[end])) end += 1;
    const list = lines.slice(n + 1, end).map((line) => line.trim()).join(" ");
    if (end > n + 1 && list.length <= LIST_CHARACTERS && /^\s*\],?$/.test(lines[end] ?? "")) {
      joined.push(lines[n] + list + lines[end].trim());
      n = end;
    } else joined.push(lines[n]);
  }
  return joined;
}

const indent = (line) => line.length - line.trimStart().length;

function linesInside(lines, n) {
  const depth = indent(lines[n]);
  let end = n + 1;
  while (end < lines.length && indent(lines[end]) > depth) end += 1;
  return end - n - 1;
}

// A line with its name and its value told apart.
function jsonLine(line) {
  const [, space, name, rest] = /^(\s*)("(?:[^"\\]|\\.)*")?([^]*)$/.exec(line);
  const isName = name && rest.startsWith(":");
  const node = make("span", { class: "json-line" }, space);
  if (isName) node.append(make("span", { class: "name", text: name }), rest);
  else node.append((name || "") + rest);
  return node;
}
