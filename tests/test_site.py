"""The site in a headless Chromium: python3 tests/test_site.py build/site

Serves the folder on 127.0.0.1, where the browser reaches no other address, and checks of every page: nothing is in the browser's
console, all that it asks for is there, every link inside of the site leads to a page and to an anchor of it, and at 400 pixels
it does not scroll sideways. Then the search finds something. Without a browser it is skipped, with a word."""
import functools
import html.parser
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

NARROW = 400
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Opens every page in a narrow frame, then searches; what it measured goes to /__done__, for which its picture has waited.
PROBE = """<!doctype html><title>probe</title><link rel=icon href="data:,"><body><img src="/__wait__"><script>
const sleep = ms => new Promise(done => setTimeout(done, ms))
async function open(page) {
    const frame = document.createElement("iframe")
    frame.width = %d, frame.height = 800, frame.src = page
    document.body.append(frame)
    await new Promise(done => frame.onload = done)
    await sleep(100)
    return frame
}
(async () => {
    const widths = {}
    for (const page of %s) {
        const frame = await open(page)
        widths[page] = frame.contentDocument.documentElement.scrollWidth
        frame.remove()
    }
    const frame = await open("/?q=softmax")
    let found = 0
    for (let i = 0; i < 200 && !found; i++, await sleep(100))
        found = frame.contentDocument.querySelectorAll(".md-search-result__link").length
    await fetch("/__done__", {method: "POST", body: JSON.stringify({widths, found})})
})()
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    missing, probe, told, done = [], b"", {}, threading.Event()

    def log_message(self, *args):
        pass

    def answer(self, text, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        if self.path == "/__probe__":
            self.answer(Server.probe, "text/html")
        elif self.path == "/__wait__":
            Server.done.wait(150)
            self.answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")
        else:
            super().do_GET()

    def do_POST(self):
        Server.told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(b"", "text/plain")
        Server.done.set()

    def send_error(self, code, *args):
        Server.missing.append(f"{code} {self.path}")
        super().send_error(code, *args)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loaded, self.headings = [], set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.ids.update(has[name] for name in ("id", "name") if has.get(name))
        if tag == "a" and has.get("href"):
            self.links.append(has["href"])
        if tag in ("img", "script") and has.get("src") or tag == "link" and has.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(has.get("src") or has.get("href"))
        self.headings += tag == "h1"


def open_page(browser, address, *options):
    """The page after its scripts, and what the browser said to its console."""
    with tempfile.TemporaryDirectory() as profile:
        run = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--no-first-run",
             "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--enable-logging=stderr",
             *options, "--dump-dom", address],
            capture_output=True, text=True, timeout=240)
    return run.stdout, re.findall(r"CONSOLE.*?\] (.*)", run.stderr)


def pages_of(folder):
    """The addresses of all pages, as the server has them."""
    for where, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith(".html"):
                path = "/" + os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/")
                yield re.sub(r"(^|/)index\.html$", r"\1", path)


class Check:
    passed = failed = 0

    def that(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok:
            print("FAILED", what)


def check_links(check, folder, at, page, found):
    """Links of one page; returns how many lead inside and how many outside."""
    inside = outside = 0
    for link in page.links:
        to = urllib.parse.urlsplit(urllib.parse.urljoin(f"http://site{at}", link))
        if to.netloc != "site":
            outside += 1
            check.that(to.scheme in ("https", "mailto"), f"{at}: the link {link} is https")
            continue
        inside += 1
        path = urllib.parse.unquote(to.path)
        if path in found:
            check.that(not to.fragment or urllib.parse.unquote(to.fragment) in found[path].ids, f"{at}: the link {link} leads to an anchor")
        else:
            check.that(os.path.isfile(folder + path), f"{at}: the link {link} leads to a page")
    return inside, outside


def main(folder):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        print("skipped: there is no Chromium")
        return 0
    check, found, messages, inside, outside = Check(), {}, 0, 0, 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    pages = list(pages_of(folder))
    for at in pages:
        text, said = open_page(browser, base + at, "--virtual-time-budget=2000")
        messages += len(said)
        check.that(not said, f"{at}: the console is empty: {said}")
        found[at] = Page(text)
        check.that(found[at].headings == 1, f"{at}: it has one heading of the first level")
        for source in found[at].loaded:
            check.that(not re.match(r"(?:https?:)?//(?!127\.0\.0\.1)", source), f"{at}: it loads {source} from here")
    for at, page in found.items():
        counts = check_links(check, folder, at, page, found)
        inside, outside = inside + counts[0], outside + counts[1]
    Server.probe = (PROBE % (NARROW, json.dumps(pages))).encode()
    open_page(browser, base + "/__probe__")
    widths = Server.told.get("widths", {})
    for at in pages:
        check.that(widths.get(at, NARROW + 1) <= NARROW, f"{at}: it is {widths.get(at)} pixels wide in a window of {NARROW}")
    check.that(Server.told.get("found"), "the search finds softmax")
    check.that(not Server.missing, f"all that was asked for is there: {Server.missing}")
    server.shutdown()
    print(f"{len(pages)} pages, {inside} links inside and {outside} outside, {messages} messages of the console")
    print(f"{check.passed} passed, {check.failed} failed")
    return 1 if check.failed or not pages else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
