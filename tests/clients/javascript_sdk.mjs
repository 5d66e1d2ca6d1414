// Asks our gateway through the official JavaScript SDK; run by test_clients.py with TYPESAFE_BASE_URL set.
import assert from "node:assert/strict";
import { TypeSafeClient } from "@typesafe-ai/sdk";

const client = new TypeSafeClient();
const response = await client.systemOne({
  state: { ticket: "I was charged twice. Please fix this. ".repeat(60) },
  questions: {
    refund: { type: "noul", instructions: "Does the customer ask for money back?" },
    team: {
      type: "choice",
      instructions: "Which team should handle this?",
      criteria: { billing: "Invoices, charges, refunds", technical: null, 9: null, 10: null },
    },
    anger: { type: "score", instructions: "How angry is the customer?", criteria: ["Calm", "Annoyed", "Furious"] },
  },
});

const { refund, team, anger } = response.answers;
assert.ok(refund.noul > 0 && refund.noul < 1);
// JavaScript moves integer-like keys to the front before they are sent; the names must come back all the same.
assert.deepEqual(Object.keys(team.probabilities).sort(), ["10", "9", "billing", "technical"]);
assert.ok(Math.abs(Object.values(team.probabilities).reduce((a, b) => a + b) - 1) < 1e-9);
const expected = Object.entries(anger.probabilities).reduce((sum, [level, share]) => sum + Number(level) * share, 0);
assert.ok(Math.abs(anger.score - expected) < 1e-9);
const models = await client.models.list();
assert.ok(models.some((model) => model.name === "jev-latest"));
console.log("ok");
