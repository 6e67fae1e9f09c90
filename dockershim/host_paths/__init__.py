"""Works on files at paths that pods and kubelets name, in a separate process, as any call on them may never return."""
