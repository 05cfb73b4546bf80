"""Style and script of the page about record files."""

STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
h3, h4 { font-size: .95rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h4 { color: GrayText; font-weight: normal; margin: .4rem 0 0; }
p, dd, dt, li, th, td { margin: 0; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .2rem 1rem; }
dt { color: GrayText; max-width: 12rem; }
.charts, #records { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); }
.charts section { max-height: 22rem; overflow: auto; }
section, article { border: 1px solid #8884; border-radius: .4rem; padding: .6rem; min-width: 0; }
#damaged { border-color: #c33; }
.bad { color: #c33; }
table { width: 100%; border-spacing: .3rem .1rem; font-variant-numeric: tabular-nums; }
th { font-weight: normal; text-align: right; }
.bar { width: 55%; }
meter { width: 100%; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
pre { max-height: 14rem; overflow: auto; }
code { overflow-wrap: anywhere; }
img, audio { max-width: 100%; max-height: 16rem; display: block; }
.tokens { max-height: 8rem; overflow: auto; }
.tokens b { font-weight: normal; background: #8883; border-radius: .2rem; padding: 0 .2rem; }
#records { margin-top: .6rem; }
input { font: inherit; width: min(24rem, 100%); box-sizing: border-box; }
[hidden] { display: none; }
"""

# The words of a search are also in the address, behind #, so that a link can lead to a record.
SCRIPT = """
const search = document.getElementById("search");
const found = document.getElementById("found");
const cards = [...document.querySelectorAll("article")];
function filter() {
  const words = search.value.toLowerCase().split(/\\s+/).filter(word => word);
  let count = 0;
  for (const card of cards) {
    card.hidden = !words.every(word => card.dataset.words.includes(word));
    count += card.hidden ? 0 : 1;
  }
  found.textContent = count + " of " + cards.length + " records on this page";
}
function fromAddress() {
  try { search.value = decodeURIComponent(location.hash.slice(1)); } catch { search.value = ""; }
  filter();
}
search.addEventListener("input", filter);
window.addEventListener("hashchange", fromAddress);
fromAddress();
"""
