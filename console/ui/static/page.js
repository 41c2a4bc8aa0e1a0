// Live documents: an event has a commit's number, the page then requests its own address again and changes what differs.
const notice = document.getElementById("notice");
let source = null, address = null, waiting = false, busy = false;

function say(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.isEqualNode(fresh)) return;
  if (old.matches("input, select, textarea") && (old === document.activeElement || old.dataset.touched)) return;
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((child, i) => (before[i] ? morph(before[i], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

async function renew() {
  if (document.hidden || busy) return void (waiting = true);
  waiting = false;
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Part": "1" } });
    const fresh = document.createElement("div");
    fresh.id = "part";
    fresh.innerHTML = await answer.text();
    morph(document.getElementById("part"), fresh);
    say("");
  } catch {
    say("The server does not answer. What you see is as it was.");
  }
  busy = false;
  follow();
  if (waiting) renew();
}

function follow() {
  const wanted = document.querySelector("[data-events]")?.dataset.events ?? null;
  if (wanted === address) return;
  source?.close();
  address = wanted;
  if (!wanted) return;
  source = new EventSource(wanted);
  source.onmessage = renew;
  source.onerror = () => say("The server does not answer. What you see is as it was.");
  source.onopen = () => say("");
}

document.addEventListener("visibilitychange", () => !document.hidden && waiting && renew());
document.addEventListener("input", ({ target }) => {
  target.dataset.touched = "1";
  if (target.id === "as_of") target.parentElement.querySelector("output").value = target.value;
});
document.addEventListener("change", ({ target }) => target.id === "as_of" && target.form.requestSubmit());
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("contains") ?? document.querySelector(".tools input:not([type=hidden])");
  if (event.key !== "/" || !field || event.target.matches("input, select")) return;
  event.preventDefault();
  field.select();
});
follow();
