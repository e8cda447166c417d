// Rows of a query, loaded a page at a time when they are needed, and dropped when many others have been seen since.

const PAGE_ROWS = 100;
const MAX_PAGES = 60; // rows in memory: 6,000
const PAUSE = 70; // milliseconds between requests while the list flies past

export class Rows {
  constructor(query, { loaded, failed }) {
    this.query = query;
    this.loaded = loaded;
    this.failed = failed;
    this.pages = new Map(); // number of the page: rows; least recently used first
    this.requests = new Map(); // number of the page: AbortController
    this.closed = false;
    this.lastRequest = 0;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    for (const request of this.requests.values()) request.abort();
  }

  // Return the row at an index, or undefined if it is not loaded.
  at(index) {
    return this.pages.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS];
  }

  // Load the rows begin to end; drop requests for others.
  want(begin, end) {
    const first = Math.floor(begin / PAGE_ROWS);
    const last = Math.floor(Math.max(begin, end - 1) / PAGE_ROWS);
    this.wanted = Array.from({ length: last - first + 1 }, (_, n) => first + n);
    for (const [page, request] of this.requests) {
      if (this.wanted.includes(page)) continue;
      request.abort();
      this.requests.delete(page);
    }
    clearTimeout(this.timer);
    const wait = this.lastRequest + PAUSE - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.request(), wait);
    else this.request();
  }

  request() {
    this.lastRequest = performance.now();
    for (const page of this.wanted) {
      const rows = this.pages.get(page);
      if (rows) {
        this.pages.delete(page); // and last again: it was used
        this.pages.set(page, rows);
      } else if (!this.requests.has(page)) {
        this.load(page).then(this.loaded, this.fail.bind(this));
      }
    }
  }

  fail(error) {
    if (error.name !== "AbortError" && !this.closed) this.failed(error.message);
  }

  async load(page) {
    const request = new AbortController();
    this.requests.set(page, request);
    try {
      const begin = page * PAGE_ROWS;
      const end = Math.min(begin + PAGE_ROWS, this.query.samples);
      const rows = [];
      while (begin + rows.length < end) {
        const part = await this.query.rows(begin + rows.length, end, request.signal);
        if (part.length === 0) throw new Error(
          `The server sends no samples from number ${begin + rows.length + 1} on.`,
        );
        rows.push(...part); // fewer than asked for if they are large
      }
      if (this.closed) throw new DOMException("closed", "AbortError");
      this.pages.set(page, rows);
      for (const old of this.pages.keys()) if (this.pages.size > MAX_PAGES) this.pages.delete(old);
    } finally {
      if (this.requests.get(page) === request) this.requests.delete(page);
    }
  }

  // Return the row at an index; load it if it is not there.
  async get(index) {
    if (!this.at(index)) {
      const rows = await this.query.rows(index, index + 1);
      return rows[0];
    }
    return this.at(index);
  }
}
