// The marked samples: one bit for each sample of the data set, so that ten million take 1.25 MB.

import { postForFile, postJson } from "./api.js";
import { find, say, several } from "./dom.js";

const MAX_POSITIONS = 5000; // marked samples that are sent as numbers; more are sent as bits
const PAUSE = 250; // milliseconds from the last mark to the request for the command line
const PART = 0x8000; // bytes that are encoded at once

export class Choice {
  constructor(samples, changed) {
    this.bits = new Uint8Array(Math.ceil(samples / 8));
    this.changed = changed;
    this.count = 0;
    this.version = 0; // changes with each mark
    this.savedVersion = 0;
    this.whole = null; // the query, if the marked samples are all of it
    find("save-keys").addEventListener("click", () => this.save("keys"));
    find("save-table").addEventListener("click", () => this.save("table"));
    find("unmark").addEventListener("click", () => this.clear());
    find("copy").addEventListener("click", () => this.copy());
  }

  // True if leaving the page would lose marks.
  get isUnsaved() {
    return this.count > 0 && this.savedVersion !== this.version;
  }

  has(position) {
    return (this.bits[position >> 3] & (1 << (position & 7))) !== 0;
  }

  set(position, on) {
    if (this.has(position) === on) return;
    this.bits[position >> 3] ^= 1 << (position & 7);
    this.count += on ? 1 : -1;
    this.whole = null;
    this.show();
  }

  // Mark, or unmark, the rows begin to end of a query.
  async setRows(query, begin, end, on) {
    const rows = await query.bitmap(begin, end);
    const isAll = on && begin === 0 && end === query.samples;
    const before = this.count;
    this.count = 0;
    for (let n = 0; n < this.bits.length; n += 1) {
      this.bits[n] = on ? this.bits[n] | rows[n] : this.bits[n] & ~rows[n];
      for (let byte = this.bits[n]; byte; byte &= byte - 1) this.count += 1;
    }
    if (isAll && this.count === query.samples) this.whole = query;
    else if (before !== this.count) this.whole = null;
    this.show();
  }

  clear() {
    this.bits.fill(0);
    this.count = 0;
    this.whole = null;
    this.show();
  }

  positions() {
    const positions = [];
    for (let n = 0; n < this.bits.length; n += 1) {
      for (let bit = 0; this.bits[n] >> bit; bit += 1) if ((this.bits[n] >> bit) & 1) positions.push(8 * n + bit);
    }
    return positions;
  }

  // Call the server with what is marked.
  send(call) {
    if (this.whole) return this.whole.use((query) => call({ query }));
    if (this.count <= MAX_POSITIONS) return call({ positions: this.positions() });
    let text = "";
    for (let n = 0; n < this.bits.length; n += PART) text += String.fromCharCode(...this.bits.subarray(n, n + PART));
    return call({ bitmap: btoa(text) });
  }

  show() {
    find("choice").hidden = this.count === 0;
    find("marked").textContent = `${several(this.count, "sample")} marked`;
    find("status").textContent = this.count ? `${several(this.count, "sample")} marked` : "No sample is marked";
    say(find("choice-error"), "");
    clearTimeout(this.timer);
    this.version += 1;
    if (this.count) this.timer = setTimeout(() => this.describe(this.version), PAUSE);
    this.changed();
  }

  async describe(version) {
    try {
      const { command } = await this.send((body) => postJson("/api/choice", body));
      if (version === this.version) find("command").textContent = command;
    } catch (error) {
      if (version === this.version) this.fail(error);
    }
  }

  async save(what) {
    say(find("choice-error"), "");
    find("choice").setAttribute("aria-busy", "true");
    const { version } = this;
    try {
      const { blob, name } = await this.send((body) => postForFile(`/api/choice/${what}`, body));
      download(blob, name || (what === "keys" ? "keys.txt" : "chosen.parquet"));
      this.savedVersion = version;
      find("status").textContent = `Saved ${several(this.count, "sample")}`;
    } catch (error) {
      this.fail(error);
    }
    find("choice").removeAttribute("aria-busy");
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(find("command").textContent);
      find("status").textContent = "Copied";
      find("copy").textContent = "Copied";
      setTimeout(() => (find("copy").textContent = "Copy"), 1500);
    } catch {
      getSelection().selectAllChildren(find("command")); // not allowed: ready for Ctrl-C
    }
  }

  fail(error) {
    say(find("choice-error"), error.message);
  }
}

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
