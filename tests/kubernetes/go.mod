// Of the small programs that images need; Kubernetes itself stands in releases.
module dockershim/tests/kubernetes

go 1.26.0
