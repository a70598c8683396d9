"""Where endpoints come from: DNS, Kubernetes, files. The control process follows these sources for its workers."""
