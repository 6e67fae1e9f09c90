// An NRI plugin on the library that plugins in Go are made with: it writes down what it is told, and gives each
// container the adjustment that an annotation of its pod has, in JSON.
//
// It is started by hand with flags, or by the runtime, which sends the path of the file as its configuration.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
)

// The annotation's value is a ContainerAdjustment.
const annotation = "adjust.nri.test"

type plugin struct{ file *os.File }

type line struct {
	Event      string   `json:"event"`
	Pods       []string `json:"pods"`
	Containers []string `json:"containers"`
}

func (p *plugin) note(event string, pods []*api.PodSandbox, containers []*api.Container) {
	written := line{Event: event, Pods: []string{}, Containers: []string{}}
	for _, pod := range pods {
		written.Pods = append(written.Pods, pod.GetId())
	}
	for _, container := range containers {
		written.Containers = append(written.Containers, container.GetId())
	}
	if p.file != nil {
		if err := json.NewEncoder(p.file).Encode(written); err != nil {
			log.Fatal(err)
		}
	}
}

func (p *plugin) one(event string, pod *api.PodSandbox, container *api.Container) error {
	p.note(event, []*api.PodSandbox{pod}, []*api.Container{container})
	return nil
}

func (p *plugin) open(path string) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	p.file = file
}

func (p *plugin) Configure(_ context.Context, config, _, _ string) (stub.EventMask, error) {
	if config != "" {
		p.open(config)
	}
	p.note("Configure", nil, nil)
	return 0, nil
}

func (p *plugin) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	p.note("Synchronize", pods, containers)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.one("RunPodSandbox", pod, nil)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.one("StopPodSandbox", pod, nil)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.one("RemovePodSandbox", pod, nil)
}

func (p *plugin) CreateContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("CreateContainer", []*api.PodSandbox{pod}, []*api.Container{container})
	wanted, found := pod.GetAnnotations()[annotation]
	if !found {
		return nil, nil, nil
	}
	adjustment := &api.ContainerAdjustment{}
	return adjustment, nil, protojson.Unmarshal([]byte(wanted), adjustment)
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.one("PostCreateContainer", pod, container)
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.one("StartContainer", pod, container)
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.one("PostStartContainer", pod, container)
}

func (p *plugin) StopContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) ([]*api.ContainerUpdate, error) {
	return nil, p.one("StopContainer", pod, container)
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.one("RemoveContainer", pod, container)
}

func main() {
	name := flag.String("name", "", "name to register by")
	index := flag.String("index", "", "index to register by")
	socket := flag.String("socket", "", "path of the runtime's socket")
	path := flag.String("file", "", "where to write what it is told")
	flag.Parse()
	p := &plugin{}
	var options []stub.Option
	if *socket != "" {
		options = append(options, stub.WithPluginName(*name), stub.WithPluginIdx(*index), stub.WithSocketPath(*socket))
		p.open(*path)
	}
	made, err := stub.New(p, options...)
	if err != nil {
		log.Fatal(err)
	}
	if err := made.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
