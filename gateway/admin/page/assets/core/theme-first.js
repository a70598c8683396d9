// Runs before anything is drawn, so that a chosen theme does not flash.
{
  const chosen = localStorage.getItem("pointsman-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
