// The chosen measure along an answer as bars, to see where something happens; a click goes to the token.

import { h } from "./dom.js";
import { colour, onTheme } from "./theme.js";

const HIGH = 46;
const WIDEST = 14;

export class Profile {
  constructor(sample, go) {
    Object.assign(this, { sample, scale: null });
    this.canvas = h("canvas", { "aria-hidden": "true", height: HIGH });
    this.element = h("div", { class: "profile" }, this.canvas);
    this.canvas.addEventListener("click", (event) => go(Math.floor(event.offsetX / this.pitch())));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
    this.unTheme = onTheme(() => this.draw());
  }

  pitch() {
    return Math.min(WIDEST, this.element.clientWidth / Math.max(1, this.sample.pieces.length));
  }

  paint(scale) {
    this.scale = scale;
    this.draw();
  }

  draw() {
    const wide = this.element.clientWidth;
    if (!this.scale || !wide) return;
    const dots = devicePixelRatio;
    this.canvas.width = wide * dots;
    this.canvas.height = HIGH * dots;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${HIGH}px`;
    const paint = this.canvas.getContext("2d");
    paint.scale(dots, dots);
    const two = this.scale.measure.sides === 2;
    const base = two ? HIGH / 2 : HIGH - 1;
    const reach = two ? HIGH / 2 - 2 : HIGH - 4;
    const pitch = this.pitch();
    const [up, down, rule] = [colour("--line-0"), colour("--line-1"), colour("--rule")];
    paint.fillStyle = rule;
    paint.fillRect(0, Math.round(base), Math.min(wide, pitch * this.sample.pieces.length), 1);
    this.sample.pieces.forEach((piece, at) => {
      const strength = this.sample.sampled?.[at] === 0 ? null : this.scale.strength(this.sample[this.scale.key]?.[at]);
      if (!strength) return;
      const tall = Math.max(1, Math.abs(strength) * reach);
      const rising = !two || strength > 0;
      paint.fillStyle = rising ? up : down;
      paint.fillRect(at * pitch, rising ? base - tall : base + 1, Math.max(0.7, pitch - (pitch > 4 ? 1.5 : 0.3)), tall);
    });
  }

  close() {
    this.watcher.disconnect();
    this.unTheme();
  }
}
