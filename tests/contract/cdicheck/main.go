// Program cdicheck judges CDI specs with the library that container runtimes use. Every line on stdin is a spec
// document as a JSON string, every line on stdout the verdict.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type verdict struct {
	// Error says why a runtime would refuse the spec; empty when it would not.
	Error string `json:"error"`
	// Minimum is the lowest version that has every field in use.
	Minimum string `json:"minimum"`
	// Version is the one that the document names.
	Version string   `json:"version"`
	Devices []string `json:"devices"`
}

func main() {
	directory, err := os.MkdirTemp("", "cdicheck")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(directory)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var document string
		if err := json.Unmarshal(lines.Bytes(), &document); err != nil {
			panic(err)
		}
		answer, err := json.Marshal(judge(filepath.Join(directory, "spec.json"), document))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(answer))
	}
}

func judge(path, document string) (v verdict) {
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		panic(err)
	}
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.Version = spec.Version
	if v.Minimum, err = specs.MinimumRequiredVersion(spec.Spec); err != nil {
		v.Error = err.Error()
	}
	for _, device := range spec.Devices {
		v.Devices = append(v.Devices, device.Name)
	}
	return v
}
