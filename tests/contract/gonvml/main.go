// Command gonvml uses a card the way Go programs do, through go-nvml and go-nvlib, and prints what it saw as JSON.
//
//	gonvml list              every card, its profiles and its MIG devices, by the names that clients compute
//	gonvml cut PROFILE...    turn MIG on and create one instance per profile id on the first card, driver's choice
//	gonvml twice             initialise, list, shut down, and again: the library is unloaded in between
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type migDevice struct {
	Index   int    `json:"index"`
	UUID    string `json:"uuid"`
	Profile string `json:"profile"`
}

type card struct {
	Name         string      `json:"name"`
	UUID         string      `json:"uuid"`
	PCI          string      `json:"pci"`
	Architecture string      `json:"architecture"`
	Brand        string      `json:"brand"`
	MigEnabled   bool        `json:"migEnabled"`
	Profiles     []string    `json:"profiles"`
	MigDevices   []migDevice `json:"migDevices"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(ret nvml.Return, what string) {
	if ret != nvml.SUCCESS {
		must(fmt.Errorf("%s: %s (%d)", what, nvml.ErrorString(ret), ret))
	}
}

func list(library nvml.Interface) []card {
	cards := []card{}
	walker := device.New(library)
	must(walker.VisitDevices(func(_ int, d device.Device) error {
		var c card
		var ret nvml.Return
		var err error
		c.Name, ret = d.GetName()
		check(ret, "name")
		c.UUID, ret = d.GetUUID()
		check(ret, "uuid")
		c.PCI, err = d.GetPCIBusID()
		must(err)
		c.Architecture, err = d.GetArchitectureAsString()
		must(err)
		c.Brand, err = d.GetBrandAsString()
		must(err)
		capable, err := d.IsMigCapable()
		must(err)
		if capable {
			c.MigEnabled, err = d.IsMigEnabled()
			must(err)
			profiles, err := d.GetMigProfiles()
			must(err)
			for _, p := range profiles {
				c.Profiles = append(c.Profiles, p.String())
			}
			must(d.VisitMigDevices(func(index int, m device.MigDevice) error {
				uuid, ret := m.GetUUID()
				check(ret, "MIG uuid")
				profile, err := m.GetProfile()
				must(err)
				c.MigDevices = append(c.MigDevices, migDevice{index, uuid, profile.String()})
				return nil
			}))
		}
		cards = append(cards, c)
		return nil
	}))
	return cards
}

// cut follows what partitioning tools do: look the profile up by enumeration, create, then fill with the compute
// instance of the same width; a refusal ends the attempt.
func cut(library nvml.Interface, ids []string) []map[string]int {
	made := []map[string]int{}
	d, ret := library.DeviceGetHandleByIndex(0)
	check(ret, "handle")
	ret, activation := library.DeviceSetMigMode(d, nvml.DEVICE_MIG_ENABLE)
	check(ret, "mode")
	check(activation, "activation")
	for _, word := range ids {
		id, err := strconv.Atoi(word)
		must(err)
		for e := 0; e < nvml.GPU_INSTANCE_PROFILE_COUNT; e++ {
			info, ret := d.GetGpuInstanceProfileInfo(e)
			if ret == nvml.ERROR_NOT_SUPPORTED || int(info.Id) != id {
				continue
			}
			check(ret, "profile")
			gi, ret := d.CreateGpuInstance(&info)
			if ret != nvml.SUCCESS {
				return append(made, map[string]int{"code": int(ret)})
			}
			giInfo, ret := gi.GetInfo()
			check(ret, "GPU instance")
			for c := 0; c < nvml.COMPUTE_INSTANCE_PROFILE_COUNT; c++ {
				ciInfo, ret := gi.GetComputeInstanceProfileInfo(c, 0)
				if ret != nvml.SUCCESS || ciInfo.SliceCount != info.SliceCount {
					continue
				}
				_, ret = gi.CreateComputeInstance(&ciInfo)
				check(ret, "compute instance")
				_, ret = gi.CreateComputeInstance(&ciInfo)
				if ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
					must(fmt.Errorf("a full GPU instance answered %d to a second compute instance", ret))
				}
				listed, ret := gi.GetComputeInstances(&ciInfo)
				check(ret, "compute instances")
				if len(listed) != 1 {
					must(fmt.Errorf("%d compute instances listed", len(listed)))
				}
				break
			}
			instances, ret := d.GetGpuInstances(&info)
			check(ret, "GPU instances")
			made = append(made, map[string]int{
				"start": int(giInfo.Placement.Start), "size": int(giInfo.Placement.Size), "listed": len(instances),
			})
			break
		}
	}
	return made
}

func main() {
	library := nvml.New()
	check(library.Init(), "init")
	var result any
	switch os.Args[1] {
	case "list":
		result = list(library)
	case "cut":
		result = cut(library, os.Args[2:])
	case "twice":
		first := list(library)
		check(library.Shutdown(), "shutdown")
		check(library.Init(), "second init")
		result = [][]card{first, list(library)}
	}
	check(library.Shutdown(), "shutdown")
	must(json.NewEncoder(os.Stdout).Encode(result))
}
