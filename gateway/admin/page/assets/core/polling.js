// What the gateway does not tell by itself is asked for again and again, while somebody looks.

/** Call `ask()` now and every so many milliseconds until `signal` says stop; not while the page is hidden. */
export async function every(milliseconds, ask, signal) {
  await ask();
  const again = setInterval(() => {
    if (!document.hidden) ask().catch(() => {}); // the bar says whether the gateway can be reached
  }, milliseconds);
  signal.addEventListener("abort", () => clearInterval(again));
}
