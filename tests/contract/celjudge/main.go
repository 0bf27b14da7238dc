// Answers what the API server and the scheduler make of CEL selectors, with their own code.
//
// Queries come as JSON objects on standard input, one answer a line goes to standard output. An evaluation that panics
// is answered like one that fails, as the scheduler has it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type query struct {
	Expression     string             `json:"expression"`
	Driver         string             `json:"driver"`
	Device         resourceapi.Device `json:"device"`
	ListAttributes bool               `json:"listAttributes"`
	New            bool               `json:"new"`
}

type answer struct {
	Match        *bool  `json:"match,omitempty"`
	CompileError string `json:"compileError,omitempty"`
	EvalError    string `json:"evalError,omitempty"`
	MaxCost      uint64 `json:"maxCost"`
	ActualCost   uint64 `json:"actualCost"`
}

func judge(q query) (a answer) {
	defer func() {
		if cause := recover(); cause != nil {
			a.EvalError = fmt.Sprintf("panic: %v", cause)
		}
	}()
	envType := environment.StoredExpressions
	if q.New {
		envType = environment.NewExpressions
	}
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: q.ListAttributes})
	compiled := compiler.CompileCELExpression(q.Expression, cel.Options{EnvType: &envType})
	a.MaxCost = compiled.MaxCost
	if compiled.Error != nil {
		a.CompileError = compiled.Error.Detail
		return a
	}
	match, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 q.Device.Capacity,
	})
	if details != nil && details.ActualCost() != nil {
		a.ActualCost = *details.ActualCost()
	}
	if err != nil {
		a.EvalError = err.Error()
		return a
	}
	a.Match = &match
	return a
}

func main() {
	queries := json.NewDecoder(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for {
		var q query
		if err := queries.Decode(&q); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		if err := answers.Encode(judge(q)); err != nil {
			log.Fatal(err)
		}
	}
}
