package gateway

import (
	"testing"
	"testing/synctest"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects"
	"parley/subjects/fleet"
)

// TestResumeBeyondTheEnd: a stream that is resumed behind what never was ends with
// the task, and tells that. It told nothing, and stayed.
func TestResumeBeyondTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		records := []fleet.Event{*recorded("t1", 1, fleet.StateWorking)}
		answers(t, w, "task", "events", func(data []byte) any {
			req, err := fleet.DecodeRequest[fleet.TaskEvents](data)
			if err != nil {
				return fleet.ErrorReply{Error: subjects.AsError(err)}
			}
			return fleet.TaskEventsReply{Events: records[min(int(req.AfterSeq), len(records)):]}
		})
		ctx, cancel := w.during(t.Context())
		defer cancel()
		var got []a2apb.TaskState
		done := make(chan error, 1)
		go func() {
			done <- w.subscribeToTask(ctx, &call{from: anonymous, lastEventID: "1000"}, &a2apb.SubscribeToTaskRequest{Id: "t1"}, func(f frame) error {
				if s := f.msg.GetStatusUpdate(); s != nil {
					got = append(got, s.GetStatus().GetState())
				}
				return nil
			})
		}()
		synctest.Wait()
		tell(w, recorded("t1", 2, fleet.StateDone))
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil || len(got) != 1 || got[0] != a2apb.TaskState_TASK_STATE_COMPLETED {
				t.Errorf("subscribeToTask told %v, %v, want the end", got, err)
			}
		default:
			t.Error("the stream stays when its task has ended")
		}
	})
}
