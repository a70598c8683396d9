// Light, dark, or as the system says.

import { mark, tell } from "./dom.js";

const KEY = "pointsman-theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const CALLED = { "": "Auto", dark: "Dark", light: "Light" };

/** Have the button go through the themes; `changed()` is called after each. */
export function themeSwitch(button, changed) {
  const show = (theme) => {
    mark(document.documentElement, "data-theme", theme || null);
    tell(button, CALLED[theme]);
    mark(button, "aria-label", `Theme: ${CALLED[theme]}. Switch to ${CALLED[NEXT[theme]]}`);
  };
  let theme = localStorage.getItem(KEY) ?? "";
  show(theme);
  button.addEventListener("click", () => {
    theme = NEXT[theme] ?? "";
    if (theme) localStorage.setItem(KEY, theme);
    else localStorage.removeItem(KEY);
    show(theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

/** A colour of the theme in force, for what is drawn on a canvas. */
export function colour(name, opacity = 1) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  const [red, green, blue] = found.match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}
