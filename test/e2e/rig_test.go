package e2e_test

import "parley/test/rig"

// What these tests are made of, see package rig.
type (
	entry                = rig.Entry
	record               = rig.Record
	history              = rig.History
	reader               = rig.Reader
	evidence             = rig.Evidence
	cast                 = rig.Cast
	actor                = rig.Actor
	step                 = rig.Step
	boss                 = rig.Boss
	dispatch             = rig.Dispatch
	dispatchTask         = rig.DispatchTask
	dispatchRequirements = rig.DispatchRequirements
)

const (
	patience = rig.Patience
	tryFor   = rig.TryFor
	wasEnded = rig.WasEnded

	doDone     = rig.DoDone
	doPartial  = rig.DoPartial
	doError    = rig.DoError
	doFatal    = rig.DoFatal
	doBlocked  = rig.DoBlocked
	doLimited  = rig.DoLimited
	doReturned = rig.DoReturned
	doSilent   = rig.DoSilent
	doArtifact = rig.DoArtifact
	doAsk      = rig.DoAsk
)

var (
	play      = rig.Play
	pause     = rig.Pause
	newReader = rig.NewReader
)
