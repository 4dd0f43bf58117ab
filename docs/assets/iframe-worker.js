// Pages opened as files may start no worker, so the search's runs in a hidden frame there.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        this.ready = true
        this.waiting.forEach(data => this.postMessage(data))
      }
      inner.document.body.append(script)
    }
    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
