// The grid and the list of samples: only those on the screen, and two rows around them, are in the page.

import { find } from "./dom.js";
import { Rows } from "./rows.js";
import { Scroll } from "./scroll.js";
import { fill, frame, headings, listColumns } from "./tile.js";

const GAP = 10; // pixels between tiles
const TILE = { wide: 172, narrow: 140 }; // least width of a tile
const NARROW = 600; // pixels of a list that has narrow tiles
const CAPTION = 58; // pixels under the picture of a tile
const LIST_ROW = { wide: 52, narrow: 64 };
const ROWS_AROUND = 2;

export class Samples {
  // `acts`: open(index), mark(index, extend), isMarked(position), sort(column), moved().
  constructor(acts) {
    this.acts = acts;
    this.scroller = find("scroller");
    this.list = find("samples");
    this.nodes = new Map(); // index: element
    this.current = 0;
    this.view = "grid";
    this.sort = null;
    this.columns = 1;
    this.rowHeight = 1;
    this.count = 0;
    this.scroll = new Scroll(this.scroller, find("spacer"), () => this.draw());
    new ResizeObserver(() => this.layout()).observe(this.scroller);
    this.list.addEventListener("click", (event) => this.click(event));
    this.list.addEventListener("focusin", (event) => this.take(event));
    find("rows-error").querySelector("button").addEventListener("click", () => this.again());
  }

  // Show the rows of a query from a row on; the list of columns and the sort decide what a row tells.
  show(query, { about, view, sort, at }) {
    this.rows?.close();
    this.rows = new Rows(query, { loaded: () => this.loaded(), failed: (text) => this.failed(text) });
    Object.assign(this, { about, view, sort, count: query.samples });
    this.current = Math.max(0, Math.min(at, this.count - 1));
    this.failed("");
    this.layout(true);
  }

  setView(view) {
    this.view = view;
    this.layout(true);
  }

  // Measure the place for tiles; keep the current one, or the first that is seen, where it is.
  layout(afresh = false) {
    if (!this.rows) return;
    const width = this.scroller.clientWidth - 2 * GAP;
    if (!afresh && width === this.width) {
      this.scroll.to(this.scroll.top); // a change of the height alone
      return;
    }
    this.width = width;
    const narrow = width < NARROW;
    const first = afresh ? this.current : Math.round(this.scroll.top / this.rowHeight) * this.columns;
    const list = this.view === "list";
    const least = narrow ? TILE.narrow : TILE.wide;
    this.columns = list ? 1 : Math.max(1, Math.floor((width + GAP) / (least + GAP)));
    const tile = (width - GAP * (this.columns - 1)) / this.columns;
    this.rowHeight = list ? (narrow ? LIST_ROW.narrow : LIST_ROW.wide) : Math.round(tile * 0.75) + CAPTION + GAP;
    this.list.className = list ? "list" : "grid";
    this.list.style.setProperty("--columns", this.columns);
    this.list.style.setProperty("--row", `${this.rowHeight - (list ? 0 : GAP)}px`);
    this.shownColumns = list ? listColumns(this.about, this.sort, width) : [];
    this.scroller.parentNode.style.setProperty("--values", this.shownColumns.length);
    this.clear();
    find("heads").style.setProperty("--bar", `${this.scroller.offsetWidth - this.scroller.clientWidth}px`);
    headings(find("heads"), list && !narrow, this.shownColumns, this);
    const height = Math.ceil(this.count / this.columns) * this.rowHeight + (list ? 0 : GAP);
    const top = Math.floor(first / this.columns) * this.rowHeight;
    this.scroll.resize(height, top + this.rowHeight <= this.scroller.clientHeight ? 0 : top);
  }

  clear() {
    this.hadFocus ||= this.list.contains(document.activeElement);
    this.list.replaceChildren();
    this.nodes.clear();
  }

  // Put in the elements of what is seen, take out the others, and ask for their rows.
  draw() {
    if (!this.rows) return;
    const { top, view } = this.scroll;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - ROWS_AROUND);
    const last = Math.ceil((top + view) / this.rowHeight) + ROWS_AROUND;
    const begin = first * this.columns;
    const end = Math.min(this.count, last * this.columns);
    this.list.style.transform = `translateY(${first * this.rowHeight + this.scroll.shift}px)`;
    this.exchange(begin, end);
    if (begin < end) this.rows.want(begin, end);
    this.acts.moved(this.firstSeen());
  }

  exchange(begin, end) {
    for (const [index, node] of this.nodes) {
      if (index >= begin && index < end) continue;
      this.hadFocus ||= node.contains(document.activeElement);
      for (const image of node.querySelectorAll("img")) image.removeAttribute("src"); // what has not come need not
      node.remove();
      this.nodes.delete(index);
    }
    const before = this.list.firstChild; // those that stay are in order: the new ones are before or behind them
    const least = before ? Number(before.dataset.index) : Infinity;
    for (let index = begin; index < end; index += 1) {
      if (this.nodes.has(index)) continue;
      const node = frame(index, this.count);
      this.nodes.set(index, node);
      this.list.insertBefore(node, index < least ? before : null);
      this.fill(index);
    }
    this.setCurrent(this.current);
    if (this.hadFocus && this.nodes.has(this.current) && document.activeElement === document.body) {
      this.nodes.get(this.current).querySelector(".open").focus({ preventScroll: true });
      this.hadFocus = false;
    }
  }

  fill(index) {
    const row = this.rows.at(index);
    const node = this.nodes.get(index);
    if (!row || node.dataset.filled) return;
    fill(node, row, { list: this.view === "list", columns: this.shownColumns, sort: this.sort, about: this.about });
    this.drawMark(node, row);
  }

  loaded() {
    this.failed("");
    for (const index of this.nodes.keys()) this.fill(index);
    this.setCurrent(this.current);
  }

  failed(text) {
    const box = find("rows-error");
    box.querySelector("span").textContent = text;
    box.hidden = !text;
  }

  again() {
    this.failed("");
    this.draw();
  }

  drawMarks() {
    for (const [index, node] of this.nodes) {
      const row = this.rows.at(index);
      if (row) this.drawMark(node, row);
    }
  }

  drawMark(node, row) {
    const marked = this.acts.isMarked(row.position);
    node.classList.toggle("marked", marked);
    node.querySelector("input").checked = marked;
  }

  firstSeen() {
    return Math.min(this.count - 1, Math.ceil(Math.max(0, this.scroll.top - GAP) / this.rowHeight) * this.columns);
  }

  click(event) {
    const node = event.target.closest("li");
    if (!node) return;
    const index = Number(node.dataset.index);
    if (event.target.closest(".mark")) {
      if (event.target.localName !== "input") return; // the label clicks its box
      this.setCurrent(index);
      this.acts.mark(index, event.shiftKey);
    } else if (event.target.closest(".open")) {
      this.setCurrent(index);
      if (event.shiftKey || event.ctrlKey || event.metaKey) this.acts.mark(index, event.shiftKey);
      else this.acts.open(index);
    }
  }

  take(event) {
    const node = event.target.closest("li");
    if (node) this.setCurrent(Number(node.dataset.index));
  }

  // One sample at a time can be reached by Tab; the arrows do the rest.
  setCurrent(index) {
    this.nodes.get(this.current)?.querySelector(".open").setAttribute("tabindex", "-1");
    this.nodes.get(this.current)?.classList.remove("current");
    this.current = index;
    this.nodes.get(index)?.querySelector(".open").setAttribute("tabindex", "0");
    this.nodes.get(index)?.classList.add("current");
  }

  // Make the sample at an index the current one, scroll to it, and give it the focus.
  go(index, { focus = true } = {}) {
    if (!this.count) return;
    this.setCurrent(Math.max(0, Math.min(index, this.count - 1)));
    const top = Math.floor(this.current / this.columns) * this.rowHeight;
    const bottom = top + this.rowHeight + (this.view === "list" ? 0 : GAP);
    if (top < this.scroll.top) this.scroll.to(top);
    else if (bottom > this.scroll.top + this.scroll.view) this.scroll.to(bottom - this.scroll.view);
    if (focus) this.nodes.get(this.current)?.querySelector(".open").focus({ preventScroll: true });
  }

  // Return the index that a key leads to from the current one; undefined for other keys.
  target(key) {
    const screen = Math.max(1, Math.floor(this.scroll.view / this.rowHeight)) * this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, h: -1, l: 1, p: -1, n: 1, PageUp: -screen, PageDown: screen };
    const lines = { ArrowUp: -1, ArrowDown: 1, k: -1, j: 1 };
    if (key === "Home") return 0;
    if (key === "End") return this.count - 1;
    if (Object.hasOwn(steps, key)) return this.current + steps[key];
    if (!Object.hasOwn(lines, key)) return undefined;
    const to = this.current + lines[key] * this.columns;
    const isLastRow = Math.floor(this.current / this.columns) === Math.floor((this.count - 1) / this.columns);
    return to < 0 || (to >= this.count && isLastRow) ? this.current : to;
  }
}
