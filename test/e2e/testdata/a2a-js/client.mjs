// Drives a gateway with the official JavaScript SDK: node client.mjs URL BINDING
import assert from 'node:assert/strict';
import { SendMessageRequest, TaskState, verifyAgentCardSignature } from '@a2a-js/sdk';
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';

const [url, binding] = process.argv.slice(2);
const transports = { 'JSONRPC': new JsonRpcTransportFactory(), 'HTTP+JSON': new RestTransportFactory() };
const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  transports: Object.values(transports), preferredTransports: [binding],
}));
const client = await factory.createFromUrl(url);

let n = 0;
const say = (text, more = {}, configuration = {}) => SendMessageRequest.fromJSON({
  message: { messageId: `m${++n}`, role: 'ROLE_USER', parts: [{ text }], ...more }, configuration,
});
// What a call gives may be wrapped, by the version of the SDK.
const open = (r) => r?.payload?.value ?? r?.task ?? r;
const output = (task) => task.artifacts.find((a) => a.name === 'result').parts[0].content.value;
const refused = async (what, promise) => {
  await assert.rejects(promise, undefined, `${what} should be refused`);
};

const card = await client.getAgentCard();
assert.equal(card.supportedInterfaces.length, 4);

// the card's signature, by the key that it names
const verify = verifyAgentCardSignature(async (kid, jku) => {
  assert.ok(jku.startsWith(url), jku);
  const { keys } = await (await fetch(jku)).json();
  return keys.find((key) => key.kid === kid);
});
await verify(card);
await verify(await (await fetch(`${url}/.well-known/agent-card.json`)).json());
const forged = structuredClone(card);
forged.name = 'Another';
await assert.rejects(verify(forged));

// a blocking send
const done = open(await client.sendMessage(say('hello')));
assert.equal(done.status.state, TaskState.TASK_STATE_COMPLETED);
assert.equal(output(done), 'hello');

// a stream
const kinds = [];
for await (const event of client.sendMessageStream(say('again'))) kinds.push(event.payload.$case);
assert.deepEqual(kinds, ['task', 'statusUpdate', 'artifactUpdate', 'statusUpdate']);

// get and list
const got = await client.getTask({ tenant: '', id: done.id, historyLength: undefined });
assert.equal(got.id, done.id);
const page = await client.listTasks({ tenant: '', contextId: done.contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageSize: 10, pageToken: '' });
assert.equal(page.tasks.length, 1);
assert.equal(page.nextPageToken, '');

// input required, and the answer
const asked = open(await client.sendMessage(say('ask')));
assert.equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
const answered = open(await client.sendMessage(say('blue', { taskId: asked.id, contextId: asked.contextId })));
assert.equal(output(answered), 'blue');

// subscribe, and cancel
const held = open(await client.sendMessage(say('ask', {}, { returnImmediately: true })));
const stream = client.resubscribeTask({ tenant: '', id: held.id });
const first = await stream.next();
assert.equal(first.value.payload.$case, 'task');
const canceled = await client.cancelTask({ tenant: '', id: held.id, metadata: undefined });
assert.equal(canceled.status.state, TaskState.TASK_STATE_CANCELED);
let last;
for await (const event of stream) last = event;
assert.equal(last.payload.value.status.state, TaskState.TASK_STATE_CANCELED);

// errors
await refused('an unknown task', client.getTask({ tenant: '', id: 'nothing', historyLength: undefined }));
await refused('a second cancel', client.cancelTask({ tenant: '', id: held.id, metadata: undefined }));
console.log('ok');
