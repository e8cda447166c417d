// The keys of the page, which the help lists.

import { find, make } from "./dom.js";

export const KEYS = [
  ["← → ↑ ↓ or h l k j", "move to another sample"],
  ["PageUp PageDown", "move a screen up or down"],
  ["Home End", "first or last sample"],
  ["n p", "next or previous sample, also of a large one"],
  ["Enter", "show the sample large"],
  ["Escape", "close; leave the search"],
  ["/", "search"],
  ["Backspace", "remove the last filter"],
  ["g", "go to a sample by its number"],
  ["s", "sort"],
  ["f", "filters: Tab moves among them, Enter filters"],
  ["v", "grid or list"],
  ["x", "mark, or unmark"],
  ["Shift+X", "mark from the last marked sample to here"],
  ["a Shift+A", "mark all that match; unmark all"],
  ["c", "the command line and the buttons that save"],
  ["Space", "play or pause, in a large sample"],
  ["+ - 0 1", "larger, smaller, fit, one to one, in a large picture"],
  ["?", "this help"],
];

export function fillHelp() {
  const rows = KEYS.flatMap(([keys, words]) => [
    make(
      "dt",
      {},
      ...keys.split(" ").flatMap((key) => (key === "or" ? [" or "] : [make("kbd", { text: key }), " "])),
    ),
    make("dd", { text: words }),
  ]);
  find("help-keys").replaceChildren(...rows);
}

// True if a key belongs to the element that has the focus: a field to type in, a player, a list to choose from.
export function isTyping(target) {
  return target.matches("input:not([type=checkbox]), textarea, select, audio, video");
}
