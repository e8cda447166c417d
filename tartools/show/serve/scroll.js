// Scroll positions of a list that may be higher than a browser can draw.
//
// Browsers limit an element to 17 to 33 million pixels; ten million samples in a grid take 500 million. `Scroll` maps
// the top of what is seen (0 to `height`) to the scroll position of an element of at most MAX_PIXELS:
//
//     list      |-- exact --|----------- squeezed -----------|-- exact --|
//     element   |-- exact --|----- squeezed -----|-- exact --|
//
// A small step (wheel, keys, a finger) moves the list by as many pixels anywhere. A large one (the scroll bar) is a
// jump, by the map. When scrolling pauses, the scroll bar is set to where the map wants it, and nothing moves.

const MAX_PIXELS = 8_000_000;
const EXACT_PIXELS = 1_000_000; // at each end
const JUMP_SCREENS = 3; // a longer step is a jump
const PAUSE = 200; // milliseconds

export class Scroll {
  constructor(scroller, spacer, moved) {
    Object.assign(this, { scroller, spacer, moved, height: 0, top: 0, last: 0 });
    scroller.addEventListener("scroll", () => this.follow(), { passive: true });
  }

  get view() {
    return this.scroller.clientHeight;
  }

  // Set the height of the list, and the top of what is seen.
  resize(height, top) {
    this.height = height;
    this.spacer.style.height = `${Math.min(height, MAX_PIXELS)}px`;
    this.to(top);
  }

  to(top) {
    this.top = Math.max(0, Math.min(top, this.height - this.view));
    this.scroller.scrollTop = this.position(this.top);
    this.last = this.scroller.scrollTop;
    this.moved();
  }

  // The difference between a pixel of the list and the same pixel of the element, here.
  get shift() {
    return this.height <= MAX_PIXELS ? 0 : this.last - this.top;
  }

  follow() {
    const now = this.scroller.scrollTop;
    const step = now - this.last;
    if (step === 0) return;
    this.last = now;
    if (this.height <= MAX_PIXELS) this.top = now;
    else if (Math.abs(step) < JUMP_SCREENS * this.view) this.top += step;
    else this.top = this.topAt(now);
    this.top = Math.max(0, Math.min(this.top, this.height - this.view));
    this.moved();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(), PAUSE);
  }

  settle() {
    if (this.height > MAX_PIXELS && Math.abs(this.position(this.top) - this.last) > 1) this.to(this.top);
  }

  position(top) {
    if (this.height <= MAX_PIXELS) return top;
    const [end, last] = [this.height - this.view, MAX_PIXELS - this.view];
    if (top <= EXACT_PIXELS) return top;
    if (top >= end - EXACT_PIXELS) return last - (end - top);
    return EXACT_PIXELS + ((top - EXACT_PIXELS) * (last - 2 * EXACT_PIXELS)) / (end - 2 * EXACT_PIXELS);
  }

  topAt(position) {
    const [end, last] = [this.height - this.view, MAX_PIXELS - this.view];
    if (position <= EXACT_PIXELS) return position;
    if (position >= last - EXACT_PIXELS) return end - (last - position);
    return EXACT_PIXELS + ((position - EXACT_PIXELS) * (end - 2 * EXACT_PIXELS)) / (last - 2 * EXACT_PIXELS);
  }
}
