"""Where endpoints come from: DNS, Kubernetes, files, lists by HTTP. The control process follows them for workers."""
