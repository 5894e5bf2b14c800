/* Browsers refuse a Worker to pages that are opened as files, and with it the search. There a
   hidden frame runs the Worker's script in its place. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.hear(data);
      this.inner.importScripts = (...urls) => Promise.all(urls.map((url) => this.load(url)));
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.inner.document.createElement("script");
      script.src = url;
      return new Promise((resolve) => {
        script.onload = resolve;
        this.inner.document.body.append(script);
      });
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new this.inner.MessageEvent("message", { data });
        this.inner.dispatchEvent(event);
      });
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
